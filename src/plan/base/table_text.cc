#include "src/plan/base/table_text.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "src/plan/base/printable.h"

namespace paradyse {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::vector<std::size_t> widths_of(const Rows& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  return widths;
}

std::size_t line_of(const std::vector<std::size_t>& widths) {
  return std::accumulate(widths.begin(), widths.end(), 2 * widths.size()) -
         (widths.empty() ? 0 : 2);
}

void erase_column(Rows& rows, std::size_t column) {
  for (auto& row : rows) {
    if (column < row.size()) {
      row.erase(row.begin() + static_cast<std::ptrdiff_t>(column));
    }
  }
}

// At spaces, each piece no longer than `width` unless it has none.
std::vector<std::string> pieces_of(const std::string& cell, std::size_t width) {
  std::vector<std::string> pieces;
  std::string rest = cell;
  while (rest.size() > width) {
    std::size_t at = rest.rfind(' ', width);
    if (at == std::string::npos || at == 0) {
      at = rest.find(' ', width);
    }
    if (at == std::string::npos) {
      break;
    }
    pieces.push_back(rest.substr(0, at));
    rest = "  " + rest.substr(at + 1);
    if (rest.find_first_not_of(' ') == std::string::npos || rest.rfind(' ') < 2) {
      break;
    }
  }
  pieces.push_back(rest);
  return pieces;
}

}  // namespace

std::string table_text(const std::vector<std::vector<std::string>>& all, const TableLook& look) {
  Rows rows = all;
  for (auto& row : rows) {
    std::ranges::transform(row, row.begin(), printable);
  }
  std::size_t left = look.left;
  if (look.best) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      rows[r].front() = (r == *look.best ? "* " : "  ") + rows[r].front();
    }
  }
  const auto too_long = [&] { return look.width > 0 && line_of(widths_of(rows)) > look.width; };
  std::vector<std::string> gone;
  const auto drop = [&](std::size_t column) {
    const std::string& name = rows.front()[column];  // of several columns of a name once
    if (std::ranges::find(gone, name) == gone.end()) {
      gone.push_back(name);
    }
    erase_column(rows, column);
    left -= column < left ? 1 : 0;
  };
  for (auto name = look.drop.begin(); name != look.drop.end() && too_long(); ++name) {
    const auto at = std::ranges::find(rows.front(), *name);
    if (at != rows.front().end()) {
      drop(static_cast<std::size_t>(at - rows.front().begin()));
    }
  }
  while (too_long() && rows.front().size() > 2) {
    drop(rows.front().size() - 1);
  }
  std::vector<std::size_t> widths = widths_of(rows);
  std::size_t broken = widths.size();  // the column whose cells are continued
  if (look.width > 0 && line_of(widths) > look.width && left > 0) {
    broken = static_cast<std::size_t>(
        std::max_element(widths.begin(), widths.begin() + static_cast<std::ptrdiff_t>(left)) -
        widths.begin());
    constexpr std::size_t kLeast = 16;
    const std::size_t others = line_of(widths) - widths[broken];
    widths[broken] = std::max(kLeast, look.width - std::min(look.width, others));
  }
  std::string text;
  for (const auto& row : rows) {
    std::vector<std::string> pieces = {""};
    if (broken < row.size()) {
      pieces = pieces_of(row[broken], widths[broken]);
    }
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      std::string line;
      for (std::size_t c = 0; c < row.size(); ++c) {
        const std::string cell = c == broken ? pieces[p] : p == 0 ? row[c] : "";
        const std::string padding(widths[c] - std::min(widths[c], cell.size()), ' ');
        line += c == 0 ? "" : "  ";
        line += c < left ? cell + padding : padding + cell;
      }
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
  }
  if (!gone.empty()) {
    std::string line = "left out, --verbose shows:";
    for (std::size_t i = 0; i < gone.size(); ++i) {
      const std::string word = " " + gone[i] + (i + 1 < gone.size() ? "," : "");
      if (line.size() + word.size() > std::max<std::size_t>(look.width, 40)) {
        text += line + "\n";
        line = " ";
      }
      line += word;
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace paradyse
