// Rows of an alignment as files write them, and the alignment that they are.  Next: stockholm.cc,
// fasta.cc.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "src/run/data/evoformer/alignment.h"

namespace paradyse {

struct AlignmentLine {
  std::string_view text;  // of the file's content, without blanks at its end
  std::size_t number = 0;
};

// The letters, gaps and insertions of a sequence.
struct AlignmentRow {
  std::string name;
  std::string text = {};
  std::size_t line = 0;    // its first
  std::string marks = {};  // [column] 'm': the letter is masked; as far as there are any
};

inline bool is_small(char letter) { return letter >= 'a' && letter <= 'z'; }

// What small letters and dots are: letters and gaps like others, or insertions between columns.
enum class SmallLetters { letters, insertions };

// Throws std::runtime_error: "file:line: what".
[[noreturn]] void refuse_line(
    const std::filesystem::path& file, std::size_t line, const std::string& what);

// Adds what stands on a line to a row.  Throws naming line and column where that is neither a
// letter nor a gap.
void add_letters(
    AlignmentRow& row,
    std::string_view letters,
    const AlignmentLine& line,
    const std::filesystem::path& file);

// Residues are the columns in which the first row has a letter, but for those that are masked: in
// `marks` there is a character for each column ("": none), an 'm' for those.  Throws naming the
// line: rows that are empty or of unequal length, a first row without letters, or with masked ones
// alone; rows without a letter that counts; rows of nucleotides, unless they are surely a
// protein's.
Alignment alignment_of(
    const std::vector<AlignmentRow>& rows,
    SmallLetters small,
    const std::filesystem::path& file,
    const AlignmentReading& reading,
    std::string_view marks = {});

// By a file's lines, of which the first that is not empty says which it is.
std::vector<Alignment> read_stockholm(
    const std::vector<AlignmentLine>& lines,
    const std::filesystem::path& file,
    const AlignmentReading& reading);
std::vector<Alignment> read_fasta(
    const std::vector<AlignmentLine>& lines,
    const std::filesystem::path& file,
    const AlignmentReading& reading);

}  // namespace paradyse
