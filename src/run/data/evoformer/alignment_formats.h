// What a file is that is given for an alignment, by its bytes and its lines.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace paradyse {

inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
inline constexpr std::string_view kStockholmHeader = "# STOCKHOLM 1.0";

// Whether a line is meant as Stockholm's header, be it spelt so or not: "#stockholm 1.0", and a
// letter or two wrong.
bool is_stockholm_header(std::string_view line);

// What another file begins with, in the middle of A3M or aligned FASTA ("a Stockholm alignment"),
// or "".
std::string file_begun_by(std::string_view line);

// What a file is that begins with these bytes, and what to do ("is compressed (gzip), which is not
// read; unpack it: gunzip FILE"); "": it may be an alignment.
std::string foreign_alignment(std::string_view bytes, const std::filesystem::path& file);

// What a file in a folder of alignments is: read, refused by its reader, or left out.
enum class BesideAlignments {
  alignment,  // in a format that is read or not, perhaps compressed
  nothing,    // no line but comments
  other,
};
// By its name and its first bytes.
BesideAlignments beside_alignments(const std::filesystem::path& file);

}  // namespace paradyse
