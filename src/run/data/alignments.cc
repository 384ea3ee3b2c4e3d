// Alignments as files: Stockholm 1.0 (several blocks, several alignments), A3M, aligned FASTA.
#include <fstream>
#include <map>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

#include "paradyse/plan/index.h"
#include "src/plan/base/disk_file.h"
#include "src/run/data/grid_data.h"

namespace paradyse {
namespace {

// Classes in the order of OpenFold's restypes; 20: unknown, 21: gap.
constexpr std::string_view kAminoAcids = "ARNDCQEGHILKMFPSTWYV";
constexpr std::int32_t kUnknown = 20;
constexpr std::int32_t kGap = 21;

struct Line {
  std::string text;
  std::size_t number = 0;
};

// A row as it is written: letters, gaps, insertions; and where it begins.
struct Row {
  std::string name;
  std::string text;
  std::size_t line = 0;
};

[[noreturn]] void refuse(
    const std::filesystem::path& file, std::size_t line, const std::string& what) {
  throw std::runtime_error(fmt::format("{}:{}: {}", file.string(), line, what));
}

bool is_gap(char letter) { return letter == '-' || letter == '.' || letter == '~'; }

std::int32_t class_of(char letter, const Row& row, const std::filesystem::path& file) {
  if (is_gap(letter)) {
    return kGap;
  }
  const std::size_t known = kAminoAcids.find(letter);
  if (known != std::string_view::npos) {
    return static_cast<std::int32_t>(known);
  }
  switch (letter) {
    case 'B':  // aspartic acid or asparagine
      return 3;
    case 'Z':  // glutamic acid or glutamine
      return 6;
    case 'U':  // selenocysteine
      return 4;
    case 'X':
    case 'J':
    case 'O':
      return kUnknown;
    default:
      refuse(
          file,
          row.line,
          fmt::format(
              "'{}' in the row of '{}' is neither an amino acid nor a gap", letter, row.name));
  }
}

char upper(char letter) {
  return letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
}

// Rows in which the columns of the first one's letters are residues.  `insertions`: small letters
// and dots stand between columns, as in A3M; else every character is one.
Alignment alignment_of(
    const std::vector<Row>& rows, bool insertions, const std::filesystem::path& file) {
  const auto is_column = [&](char letter) {
    return !insertions || (letter != '.' && !(letter >= 'a' && letter <= 'z'));
  };
  // The columns of each row, and the letters left out before each.
  struct Columns {
    std::string letters;
    std::vector<std::int32_t> before;
  };
  std::vector<Columns> all;
  for (const Row& row : rows) {
    Columns& columns = all.emplace_back();
    std::int32_t skipped = 0;
    for (const char letter : row.text) {
      if (is_column(letter)) {
        columns.letters.push_back(upper(letter));
        columns.before.push_back(skipped);
        skipped = 0;
      } else if (letter != '.') {
        class_of(upper(letter), row, file);  // refuses what is no letter
        ++skipped;
      }
    }
    if (columns.letters.size() != all.front().letters.size()) {
      refuse(
          file,
          row.line,
          fmt::format(
              "the row of '{}' has {} columns, the first {}; rows of an alignment are equally long",
              row.name,
              columns.letters.size(),
              all.front().letters.size()));
    }
  }
  Alignment alignment;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    alignment.names.push_back(rows[i].name);
    std::vector<std::int32_t>& letters = alignment.letters.emplace_back();
    std::vector<std::int32_t>& deletions = alignment.deletions.emplace_back();
    std::int32_t skipped = 0;
    for (std::size_t column = 0; column < all[i].letters.size(); ++column) {
      const std::int32_t letter = class_of(all[i].letters[column], rows[i], file);
      skipped += all[i].before[column];
      if (is_gap(all.front().letters[column])) {
        skipped += letter == kGap ? 0 : 1;
        continue;
      }
      letters.push_back(letter);
      deletions.push_back(skipped);
      skipped = 0;
    }
  }
  if (alignment.letters.front().empty()) {
    refuse(file, rows.front().line, "the first row has no letters: there are no residues");
  }
  return alignment;
}

std::vector<Alignment> stockholm(
    const std::vector<Line>& lines, const std::filesystem::path& file) {
  std::vector<Alignment> all;
  std::vector<Row> rows;
  std::map<std::string, std::size_t> known;
  const auto finish = [&] {
    if (!rows.empty()) {
      all.push_back(alignment_of(rows, /*insertions=*/false, file));
    }
    rows.clear();
    known.clear();
  };
  for (const Line& line : lines) {
    if (line.text.empty() || line.text.front() == '#') {
      continue;
    }
    if (line.text == "//") {
      finish();
      continue;
    }
    const std::size_t space = line.text.find_first_of(" \t");
    const std::size_t begin =
        space == std::string::npos ? space : line.text.find_first_not_of(" \t", space);
    if (begin == std::string::npos) {
      refuse(file, line.number, "expected a name and its row, separated by spaces");
    }
    const std::string name = line.text.substr(0, space);
    const auto [place, fresh] = known.try_emplace(name, rows.size());
    if (fresh) {
      rows.push_back({.name = name, .text = {}, .line = line.number});
    }
    rows[place->second].text += line.text.substr(begin);
  }
  finish();
  return all;
}

std::vector<Alignment> fasta(const std::vector<Line>& lines, const std::filesystem::path& file) {
  std::vector<Row> rows;
  for (const Line& line : lines) {
    if (line.text.empty() || line.text.front() == '#') {
      continue;
    }
    if (line.text.front() == '>') {
      rows.push_back(
          {.name = line.text.substr(1, line.text.find_first_of(" \t") - 1),
           .text = {},
           .line = line.number});
    } else if (rows.empty()) {
      refuse(
          file,
          line.number,
          "expected \"# STOCKHOLM 1.0\" or a line that begins with '>': this is not an alignment");
    } else {
      rows.back().text += line.text;
    }
  }
  return rows.empty() ? std::vector<Alignment>{}
                      : std::vector{alignment_of(rows, /*insertions=*/true, file)};
}

}  // namespace

std::vector<Alignment> read_alignment_file(const std::filesystem::path& file) {
  if (const std::string why = why_not_readable(file); !why.empty()) {
    throw std::runtime_error(file.string() + ": cannot be read: " + why);
  }
  std::ifstream stream(file);
  std::vector<Line> lines;
  for (std::string text; std::getline(stream, text);) {
    if (const std::size_t nul = text.find('\0'); nul != std::string::npos) {
      refuse(
          file,
          lines.size() + 1,
          fmt::format("has a NUL byte (byte {}): the file was damaged, or is UTF-16", nul));
    }
    text.erase(text.find_last_not_of(" \t\r") + 1);
    lines.push_back({.text = text, .number = lines.size() + 1});
  }
  const bool is_stockholm = !lines.empty() && lines.front().text.starts_with("# STOCKHOLM");
  std::vector<Alignment> all = is_stockholm ? stockholm(lines, file) : fasta(lines, file);
  if (all.empty()) {
    throw std::runtime_error(
        file.string() + ": has no sequences; give an alignment, Stockholm or A3M");
  }
  return all;
}

}  // namespace paradyse
