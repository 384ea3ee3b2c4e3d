#include "src/run/data/evoformer/alignment_rows.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace paradyse {
namespace {

// Classes in the order of OpenFold's restypes; 20: unknown, 21: gap.
constexpr std::string_view kAminoAcids = "ARNDCQEGHILKMFPSTWYV";
constexpr std::int32_t kUnknown = 20;
constexpr std::int32_t kGap = 21;

bool is_gap(char letter) {
  return letter == '-' || letter == '.' || letter == '~' || letter == '_';
}
char upper(char letter) {
  return is_small(letter) ? static_cast<char>(letter - 'a' + 'A') : letter;
}

// Of a capital letter or a gap.
std::optional<std::int32_t> class_of(char letter) {
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
      return std::nullopt;
  }
}

std::string shown(char letter) {
  const auto byte = static_cast<unsigned char>(letter);
  return byte > ' ' && byte < 0x7f ? fmt::format("'{}'", letter)
                                   : fmt::format("byte {:#04x}", byte);
}

const char* remedy(char letter) {
  if (letter == '*') {
    return "a stop ends a translation: remove it, or write X";
  }
  if (letter >= '0' && letter <= '9') {
    return "remove numbers of positions";
  }
  if (letter == ' ' || letter == '\t') {
    return "remove blanks inside rows";
  }
  return "write X for an unknown residue and - for a gap";
}

// The letters of nucleotides are a quarter of a protein's residues: eight residues have no others
// once in fifty thousand.  Of many letters a few may be others: codes of several nucleotides (R, Y,
// ...), and what is wrong.  X is any letter of either.
void expect_amino_acids(const std::vector<AlignmentRow>& rows, const std::filesystem::path& file) {
  constexpr std::int64_t kEnough = 8;
  constexpr std::int64_t kMany = 50;
  constexpr std::int64_t kPercent = 90;  // of many
  std::int64_t letters = 0;
  std::int64_t nucleotides = 0;
  for (const AlignmentRow& row : rows) {
    for (const char letter : row.text) {
      if (is_gap(letter) || upper(letter) == 'X') {
        continue;
      }
      ++letters;
      nucleotides +=
          std::string_view("ACGTUN").find(upper(letter)) == std::string_view::npos ? 0 : 1;
    }
  }
  const bool most = letters >= kMany && 100 * nucleotides >= kPercent * letters;
  if (most || (letters >= kEnough && nucleotides == letters)) {
    refuse_line(
        file,
        rows.front().line,
        fmt::format(
            "{} of the {} letters of the alignment are A, C, G, T, U or N: it is of nucleotides "
            "(DNA or RNA), and the model's letters are amino acids; translate the sequences, or, "
            "if they are a protein's, set data.protein = true",
            nucleotides == letters ? "all" : std::to_string(nucleotides),
            letters));
  }
}

}  // namespace

void refuse_line(const std::filesystem::path& file, std::size_t line, const std::string& what) {
  throw std::runtime_error(fmt::format("{}:{}: {}", file.string(), line, what));
}

void add_letters(
    AlignmentRow& row,
    std::string_view letters,
    const AlignmentLine& line,
    const std::filesystem::path& file) {
  for (const char& letter : letters) {
    if (!class_of(upper(letter))) {
      refuse_line(
          file,
          line.number,
          fmt::format(
              "{} in the row of '{}' is neither an amino acid nor a gap (character {} of the "
              "line); "
              "{}",
              shown(letter),
              row.name,
              &letter - line.text.data() + 1,
              remedy(letter)));
    }
  }
  row.text += letters;
}

Alignment alignment_of(
    const std::vector<AlignmentRow>& rows,
    SmallLetters small,
    const std::filesystem::path& file,
    const AlignmentReading& reading,
    std::string_view marks) {
  const auto is_column = [&](char letter) {
    return small == SmallLetters::letters || (letter != '.' && !is_small(letter));
  };
  // The columns of each row, and the letters left out before each.
  struct Columns {
    std::string letters;
    std::vector<std::int32_t> before;
    std::int32_t behind = 0;  // the last
  };
  std::vector<Columns> all;
  const auto has_small = [&](const AlignmentRow& row) {
    return small == SmallLetters::insertions && std::ranges::any_of(row.text, is_small);
  };
  // why a row may have other columns than its reader expects
  constexpr const char* kSmall =
      "small letters are insertions in A3M: write capitals, or, where rows are equally long with "
      "them, name the file .fasta";
  for (const AlignmentRow& row : rows) {
    if (row.text.empty()) {
      refuse_line(
          file,
          row.line,
          fmt::format("the row of '{}' is empty: give its letters, or remove its name", row.name));
    }
    Columns& columns = all.emplace_back();
    std::int32_t skipped = 0;
    for (const char letter : row.text) {
      if (is_column(letter)) {
        columns.letters.push_back(upper(letter));
        columns.before.push_back(skipped);
        skipped = 0;
      } else if (letter != '.') {
        ++skipped;
      }
    }
    columns.behind = skipped;
    if (columns.letters.size() != all.front().letters.size()) {
      refuse_line(
          file,
          row.line,
          fmt::format(
              "the row of '{}' has {} columns, the first {}; {}",
              row.name,
              columns.letters.size(),
              all.front().letters.size(),
              has_small(row) || has_small(rows.front())
                  ? fmt::format("{}; else look for a row that is cut off", kSmall)
                  : "rows of an alignment are equally long: align the sequences, or look for a row "
                    "that is cut off"));
    }
    if (&row == &rows.front() && std::ranges::all_of(columns.letters, is_gap)) {
      refuse_line(
          file,
          row.line,
          has_small(row)
              ? fmt::format("the first row, '{}', has no capital letters; {}", row.name, kSmall)
              : fmt::format(
                    "the first row, '{}', has no letters: residues are the columns where it has "
                    "one; put the sequence that is asked about first",
                    row.name));
    }
  }
  const std::string& asked_about = all.front().letters;
  const auto is_masked = [&](std::size_t column) {
    const bool marked = column < marks.size() && marks[column] == 'm';
    const bool unknown = class_of(asked_about[column]) == kUnknown;
    switch (reading.masked) {
      case MaskedResidues::none:
        return false;
      case MaskedResidues::marked:
        return marked;
      case MaskedResidues::unknown:
        return marked || unknown;
    }
    return false;
  };
  std::vector<std::int32_t> places;  // of residues that are not masked
  std::int32_t residues = 0;
  for (std::size_t column = 0; column < asked_about.size(); ++column) {
    if (!is_gap(asked_about[column])) {
      if (!is_masked(column)) {
        places.push_back(residues);
      }
      ++residues;
    }
  }
  if (places.empty()) {
    refuse_line(
        file,
        rows.front().line,
        fmt::format(
            "all {} residues of the first row, '{}', are masked (\"m\" in #=GC MM, or unknown); "
            "data.masked_residues says which are",
            residues,
            rows.front().name));
  }
  if (!reading.surely_protein) {
    expect_amino_acids(rows, file);
  }
  Alignment alignment;
  alignment.line = rows.front().line;
  if (std::ssize(places) < residues) {
    alignment.places = std::move(places);
  }
  // The columns from a row's first letter to its last, wherever insertions are.
  const auto covered = [&](const Columns& columns) {
    const std::size_t count = columns.letters.size();
    std::size_t first = 0;
    while (first < count && is_gap(columns.letters[first]) && columns.before[first] == 0) {
      ++first;
    }
    std::size_t end = count;
    if (columns.behind == 0) {
      while (end > first && is_gap(columns.letters[end - 1]) && columns.before[end - 1] == 0) {
        --end;
      }
      // what is inserted before a column is in front of it
      end -= end > first && is_gap(columns.letters[end - 1]) ? 1 : 0;
    }
    return std::pair{first, end};
  };
  bool some_count = false;
  bool all_count = true;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    alignment.names.push_back(rows[i].name);
    std::vector<std::int8_t>& counts = alignment.counts.emplace_back();
    const auto [covered_first, covered_end] =
        reading.letters == MaskedLetters::ends ? covered(all[i])
                                               : std::pair{std::size_t{0}, all[i].letters.size()};
    const auto letter_counts = [&, begin = covered_first, end = covered_end](std::size_t column) {
      const bool marked = reading.letters != MaskedLetters::none && column < rows[i].marks.size() &&
                          rows[i].marks[column] == 'm';
      return !marked && column >= begin && column < end;
    };
    std::vector<std::int32_t>& letters = alignment.letters.emplace_back();
    std::vector<std::int32_t>& deletions = alignment.deletions.emplace_back();
    std::int32_t skipped = 0;
    for (std::size_t column = 0; column < all[i].letters.size(); ++column) {
      const std::int32_t letter = class_of(all[i].letters[column]).value();
      skipped += all[i].before[column];
      if (is_gap(asked_about[column])) {
        skipped += letter == kGap ? 0 : 1;
        continue;
      }
      if (is_masked(column)) {
        skipped = 0;  // insertions before it are as unknown
        continue;
      }
      letters.push_back(letter);
      deletions.push_back(skipped);
      skipped = 0;
      const bool here = letter_counts(column);
      counts.push_back(here ? 1 : 0);
      some_count = some_count || here;
      all_count = all_count && here;
    }
    if (std::ranges::all_of(letters, [](std::int32_t letter) { return letter == kGap; })) {
      alignment.gap_rows.push_back({.name = rows[i].name, .line = rows[i].line});
    }
  }
  if (!some_count) {
    refuse_line(
        file,
        rows.front().line,
        "all letters of the alignment are masked (\"m\" in #=GR of a sequence, MM, or gaps at its "
        "ends); data.masked_letters says which are");
  }
  if (all_count) {
    alignment.counts.clear();
  }
  return alignment;
}

}  // namespace paradyse
