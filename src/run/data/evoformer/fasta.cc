// A3M, A2M and aligned FASTA: a name after '>', then its row, on as many lines as it takes.
//
// Words.  A row's *length* is that of all it has; its *columns* are what is left without small
// letters and dots, which are insertions in A3M and A2M, letters and gaps in aligned FASTA.
#include <algorithm>

#include <fmt/format.h>

#include "src/plan/base/lower_case.h"
#include "src/run/data/evoformer/alignment_formats.h"
#include "src/run/data/evoformer/alignment_rows.h"

namespace paradyse {
namespace {

bool is_insertion(char letter) { return letter == '.' || is_small(letter); }

// The first word after '>'.
std::string name_of(const AlignmentLine& line) {
  constexpr std::string_view kBlanks = " \t";
  std::string_view rest = line.text.substr(1);
  rest.remove_prefix(std::min(rest.find_first_not_of(kBlanks), rest.size()));
  return std::string(rest.substr(0, rest.find_first_of(kBlanks)));
}

// HH-suite writes secondary structure and its confidence as rows before those of sequences.
bool is_annotation(const std::string& name) {
  constexpr std::string_view kNames[] = {"ss_pred", "ss_conf", "ss_dssp", "sa_dssp", "aa_dssp"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

bool equal(const std::vector<AlignmentRow>& rows, auto size_of) {
  return std::ranges::all_of(
      rows, [&](const AlignmentRow& row) { return size_of(row) == size_of(rows.front()); });
}

// A2M pads insertions with dots: a place is one in all rows or in none.
bool is_padded(const std::vector<AlignmentRow>& rows) {
  const std::string& first = rows.front().text;
  bool dots = false;
  for (const AlignmentRow& row : rows) {
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (is_insertion(row.text[i]) != is_insertion(first[i])) {
        return false;
      }
      dots = dots || row.text[i] == '.';
    }
  }
  return dots;
}

bool has_ending(
    const std::filesystem::path& file, std::initializer_list<std::string_view> endings) {
  const std::string ending = lower_case(file.extension().string());
  return std::ranges::find(endings, ending) != endings.end();
}

// By the name of the file, or by what makes rows equally long.
SmallLetters small_letters(
    const std::vector<AlignmentRow>& rows, const std::filesystem::path& file) {
  const bool any = std::ranges::any_of(
      rows, [](const AlignmentRow& row) { return std::ranges::any_of(row.text, is_small); });
  const bool lengths = equal(rows, [](const AlignmentRow& row) { return row.text.size(); });
  const bool columns = equal(rows, [](const AlignmentRow& row) {
    return std::ranges::count_if(row.text, [](char letter) { return !is_insertion(letter); });
  });
  if (has_ending(file, {".a3m", ".a2m"}) || !lengths) {
    return SmallLetters::insertions;
  }
  const bool none_left = std::ranges::all_of(
      rows.front().text, [](char letter) { return is_insertion(letter) || letter == '-'; });
  if (!any || !columns || none_left) {
    return SmallLetters::letters;
  }
  if (is_padded(rows)) {
    return SmallLetters::insertions;
  }
  if (has_ending(file, {".fasta", ".fa", ".fas", ".faa", ".afa", ".mfa", ".aln"})) {
    return SmallLetters::letters;
  }
  refuse_line(
      file,
      rows.front().line,
      "lower-case letters are insertions in A3M and residues in aligned FASTA, and these rows may "
      "be either; name the file .a3m or .fasta, or write upper-case letters");
}

}  // namespace

std::vector<Alignment> read_fasta(
    const std::vector<AlignmentLine>& lines,
    const std::filesystem::path& file,
    const AlignmentReading& reading) {
  std::vector<AlignmentRow> rows;
  bool annotation = false;
  for (const AlignmentLine& line : lines) {
    if (const std::string begun = rows.empty() ? "" : file_begun_by(line.text); !begun.empty()) {
      refuse_line(
          file,
          line.number,
          fmt::format(
              "'{}': {} begins here, in the middle of a file; give the two as files of their own",
              line.text,
              begun));
    }
    if (line.text.empty() || line.text.front() == '#') {
      continue;
    }
    if (line.text.front() == '>') {
      const std::string name = name_of(line);
      annotation = is_annotation(name);
      if (!annotation) {
        rows.push_back({.name = name, .line = line.number});
      }
    } else if (annotation) {
      continue;
    } else if (rows.empty()) {
      refuse_line(
          file,
          line.number,
          "expected \"# STOCKHOLM 1.0\" or a line that begins with '>': this is not an alignment "
          "that is read; give Stockholm, A3M or aligned FASTA");
    } else {
      add_letters(rows.back(), line.text, line, file);
    }
  }
  return rows.empty() ? std::vector<Alignment>{}
                      : std::vector{alignment_of(rows, small_letters(rows, file), file, reading)};
}

}  // namespace paradyse
