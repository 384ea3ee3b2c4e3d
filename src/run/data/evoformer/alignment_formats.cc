#include "src/run/data/evoformer/alignment_formats.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/lower_case.h"
#include "src/plan/base/text_match.h"

namespace paradyse {
namespace {

using namespace std::string_view_literals;

struct AlignmentFormat {
  std::string_view begin;
  const char* what;
  const char* remedy;
  bool names_file = false;  // the remedy is a command, and the file stands behind it
  bool alignment = false;   // an alignment is, or may be, in it
};

constexpr const char* kConvert =
    "convert it to Stockholm, A3M or aligned FASTA (esl-reformat, reformat.pl of HH-suite, "
    "Bio.AlignIO)";
constexpr const char* kStructure = "give an alignment of the protein's sequences, Stockholm or A3M";
constexpr const char* kOneSequence = "search for related sequences and give their alignment";
constexpr const char* kGive = "give an alignment, Stockholm or A3M";

// By the first bytes of the file.
constexpr AlignmentFormat kBinaryFormats[] = {
    {"\x1f\x8b"sv, "is compressed (gzip)", "unpack it: gunzip", true},
    {"\x28\xb5\x2f\xfd"sv, "is compressed (zstd)", "unpack it: zstd -d", true},
    {"\xfd\x37zXZ"sv, "is compressed (xz)", "unpack it: unxz", true},
    {"BZh"sv, "is compressed (bzip2)", "unpack it: bunzip2", true},
    {"\x04\x22\x4d\x18"sv, "is compressed (lz4)", "unpack it: lz4 -d", true},
    {"PK\x03\x04"sv,
     "is a zip archive (also files of PyTorch and of office programs are)",
     "if an alignment is in it, unpack it: unzip",
     true},
    {"\xff\xfe\0\0"sv, "is UTF-32", "convert it: iconv -f UTF-32 -t UTF-8", true},
    {"\0\0\xfe\xff"sv, "is UTF-32", "convert it: iconv -f UTF-32 -t UTF-8", true},
    {"\xff\xfe"sv, "is UTF-16", "convert it: iconv -f UTF-16 -t UTF-8", true},
    {"\xfe\xff"sv, "is UTF-16", "convert it: iconv -f UTF-16 -t UTF-8", true},
    {"%PDF-"sv, "is a PDF", kGive},
};

// By the first line that is not empty.
constexpr AlignmentFormat kTextFormats[] = {
    {"CLUSTAL"sv, "is an alignment in Clustal's format", kConvert, false, true},
    {"MUSCLE ("sv, "is an alignment in Clustal's format", kConvert, false, true},
    {"PROBCONS"sv, "is an alignment in Clustal's format", kConvert, false, true},
    {"!!AA_MULTIPLE_ALIGNMENT"sv, "is an alignment in MSF format", kConvert, false, true},
    {"!!NA_MULTIPLE_ALIGNMENT"sv, "is an alignment in MSF format", kConvert, false, true},
    {"PileUp"sv, "is an alignment in MSF format", kConvert, false, true},
    {"HMMER3/"sv, "is a profile HMM", kGive},
    {"HHsearch "sv, "is a profile HMM", kGive},
    {"HEADER "sv, "is a structure in PDB format", kStructure},
    {"TITLE "sv, "is a structure in PDB format", kStructure},
    {"REMARK "sv, "is a structure in PDB format", kStructure},
    {"CRYST1"sv, "is a structure in PDB format", kStructure},
    {"MODEL "sv, "is a structure in PDB format", kStructure},
    {"ATOM "sv, "is a structure in PDB format", kStructure},
    {"HETATM"sv, "is a structure in PDB format", kStructure},
    {"SEQRES "sv, "is a structure in PDB format", kStructure},
    {"data_"sv, "is a structure in mmCIF format", kStructure},
    {"LOCUS "sv, "is a GenBank entry", kOneSequence},
    {"ID   "sv, "is an entry of UniProt or EMBL", kOneSequence},
    {"<"sv, "is XML or a web page", kGive},
    {"{"sv, "is JSON", kGive},
    {"["sv, "is JSON", kGive},
    {"@"sv, "is FASTQ or SAM", kGive},
};

const AlignmentFormat* found(const auto& formats, std::string_view bytes) {
  const auto* const one = std::ranges::find_if(
      formats, [&](const AlignmentFormat& format) { return bytes.starts_with(format.begin); });
  return one == std::end(formats) ? nullptr : one;
}

// Whatever the case of its letters.
const AlignmentFormat* text_format(std::string_view line) {
  const auto* const one = std::ranges::find_if(kTextFormats, [&](const AlignmentFormat& format) {
    return lower_case(std::string(line.substr(0, format.begin.size()))) ==
           lower_case(std::string(format.begin));
  });
  return one == std::end(kTextFormats) ? nullptr : one;
}

std::string_view without_blanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text;
}

// "#NEXUS", a comment behind it or none.
bool is_nexus(std::string_view line) {
  constexpr std::string_view kWord = "nexus";
  if (!line.starts_with('#')) {
    return false;
  }
  line = without_blanks(line.substr(1));
  const std::string_view rest = without_blanks(line.substr(std::min(kWord.size(), line.size())));
  return lower_case(std::string(line.substr(0, kWord.size()))) == kWord &&
         (rest.empty() || rest.starts_with('['));
}

// Its first letters before any digit, in lower case: of all its words, or of the first.
std::string first_letters(std::string_view line, bool one_word) {
  constexpr std::size_t kEnough = 16;  // to tell one word from others
  std::string letters;
  for (const char letter : line) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool word_ends = one_word && !letters.empty() && (letter == ' ' || letter == '\t');
    if (std::isdigit(byte) != 0 || letters.size() == kEnough || word_ends) {
      break;
    }
    if (std::isalpha(byte) != 0) {
      letters.push_back(letter);
    }
  }
  return lower_case(letters);
}

// "10,20<tab>1,1": lengths and numbers of chains, as ColabFold begins an A3M.
bool is_chains(std::string_view text) {
  const std::size_t tab = text.find('\t');
  return tab != std::string_view::npos && tab > 0 &&
         text.find_first_not_of("0123456789,\t") == std::string_view::npos;
}

// The first line that is neither empty nor a comment.
std::string_view first_line(std::string_view bytes) {
  while (!bytes.empty()) {
    bytes.remove_prefix(std::min(bytes.find_first_not_of(" \t\r\n"), bytes.size()));
    const std::string_view line = bytes.substr(0, bytes.find_first_of("\r\n"));
    if (!line.starts_with('#') || is_nexus(line) || is_stockholm_header(line)) {
      return line;
    }
    bytes.remove_prefix(line.size());
  }
  return {};
}

constexpr std::string_view kAlignmentEndings[] = {
    ".sto",
    ".stk",
    ".stockholm",
    ".a3m",
    ".a2m",
    ".fasta",
    ".fa",
    ".fas",
    ".faa",
    ".afa",
    ".mfa",
    ".aln",
    ".clustal",
    ".msf",
    ".nex",
    ".phy"};
constexpr std::string_view kPageEndings[] = {".md", ".rst", ".html", ".json", ".log"};
constexpr std::string_view kPackedEndings[] = {".gz", ".zst", ".xz", ".bz2", ".lz4", ".zip"};

bool ends_in(const std::filesystem::path& file, std::span<const std::string_view> endings) {
  return std::ranges::find(endings, lower_case(file.extension().string())) != endings.end();
}

// "  5 60": numbers of rows and columns.
bool is_phylip(std::string_view line) {
  int numbers = 0;
  bool inside = false;
  for (const char letter : line) {
    if (letter == ' ' || letter == '\t') {
      inside = false;
    } else if (letter >= '0' && letter <= '9') {
      numbers += inside ? 0 : 1;
      inside = true;
    } else {
      return false;
    }
  }
  return numbers == 2;
}

// 8 bytes that are the length of a JSON object.
bool is_safetensors(std::string_view bytes) {
  constexpr std::size_t kLength = 8;
  return bytes.size() > kLength && bytes[kLength] == '{' &&
         bytes.substr(0, kLength).ends_with("\0\0\0"sv);
}

}  // namespace

bool is_stockholm_header(std::string_view line) {
  constexpr std::string_view kName = "stockholm";
  constexpr std::size_t kLong = 32;  // rows are longer, and many
  const std::string_view begin = without_blanks(line);
  const bool marked = begin.starts_with('#');
  if (!marked && line.size() > kLong) {
    return false;
  }
  if (marked && first_letters(line, /*one_word=*/false).starts_with(kName)) {
    return true;
  }
  const std::string word = first_letters(line, /*one_word=*/true);
  if (begin.starts_with("#=") || nearest_name(word, std::vector{std::string(kName)}, 2) != kName) {
    return false;
  }
  // without its #: nothing but the name and a number
  const std::size_t digits = line.find_first_of("0123456789");
  return marked || (digits != std::string_view::npos &&
                    line.substr(digits).find_first_not_of("0123456789.") == std::string_view::npos);
}

std::string file_begun_by(std::string_view line) {
  if (line.starts_with('>')) {  // a name
    return "";
  }
  if (is_stockholm_header(line)) {
    return "a Stockholm alignment";
  }
  if (is_nexus(line)) {
    return "a NEXUS file";
  }
  if (line.starts_with('#')) {
    const std::string word = lower_case(std::string(line.substr(1)));
    return word.starts_with("a3m#") || word.starts_with("a2m#") || is_chains(word)
               ? "another A3M file"
               : "";
  }
  const AlignmentFormat* const format =
      line.find(' ') == std::string_view::npos ? nullptr : text_format(line);
  return format != nullptr && format->alignment ? "an alignment of another format" : "";
}

std::string foreign_alignment(std::string_view bytes, const std::filesystem::path& file) {
  const AlignmentFormat* format = found(kBinaryFormats, bytes);
  if (format == nullptr) {
    if (is_safetensors(bytes)) {
      return fmt::format("holds tensors (safetensors) and no alignment; {}", kGive);
    }
    const std::string_view line = first_line(bytes);
    if (is_phylip(line)) {
      return fmt::format("is an alignment in Phylip's format, which is not read; {}", kConvert);
    }
    if (is_nexus(line)) {
      return fmt::format("is in NEXUS format, which is not read; {}", kConvert);
    }
    format = text_format(line);
  }
  return format == nullptr ? ""
                           : fmt::format(
                                 "{}, which is not read; {}{}",
                                 format->what,
                                 format->remedy,
                                 format->names_file ? " " + file.string() : "");
}

BesideAlignments beside_alignments(const std::filesystem::path& file) {
  constexpr std::size_t kLooked = 65536;
  if (ends_in(ends_in(file, kPackedEndings) ? file.stem() : file, kAlignmentEndings)) {
    return BesideAlignments::alignment;
  }
  const std::string begin = beginning_of(file, kLooked);
  std::string_view text = begin;
  while (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  if (found(kBinaryFormats, text) != nullptr || is_safetensors(text)) {
    return BesideAlignments::other;
  }
  const std::string_view line = first_line(text);
  if (line.empty()) {
    return begin.size() < kLooked ? BesideAlignments::nothing : BesideAlignments::other;
  }
  if (ends_in(file, kPageEndings)) {
    return BesideAlignments::other;
  }
  const AlignmentFormat* const format = text_format(line);
  const bool alignment = line.starts_with('>') || is_stockholm_header(line) || is_nexus(line) ||
                         is_phylip(line) || (format != nullptr && format->alignment);
  return alignment ? BesideAlignments::alignment : BesideAlignments::other;
}

}  // namespace paradyse
