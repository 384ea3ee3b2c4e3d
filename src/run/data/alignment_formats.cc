#include "src/run/data/alignment_formats.h"

#include <algorithm>

#include <fmt/format.h>

namespace paradyse {
namespace {

using namespace std::string_view_literals;

struct AlignmentFormat {
  std::string_view begin;
  const char* what;
  const char* remedy;
};

constexpr const char* kConvert =
    "convert it to Stockholm, A3M or aligned FASTA (esl-reformat, reformat.pl of HH-suite, "
    "Bio.AlignIO)";
constexpr const char* kStructure = "give an alignment of the protein's sequences, Stockholm or A3M";
constexpr const char* kOneSequence = "search for related sequences and give their alignment";
constexpr const char* kGive = "give an alignment, Stockholm or A3M";

// By the first bytes of the file.
constexpr AlignmentFormat kBinaryFormats[] = {
    {"\x1f\x8b"sv, "is compressed (gzip)", "unpack it: gunzip"},
    {"\x28\xb5\x2f\xfd"sv, "is compressed (zstd)", "unpack it: zstd -d"},
    {"\xfd\x37zXZ"sv, "is compressed (xz)", "unpack it: unxz"},
    {"BZh"sv, "is compressed (bzip2)", "unpack it: bunzip2"},
    {"\x04\x22\x4d\x18"sv, "is compressed (lz4)", "unpack it: lz4 -d"},
    {"PK\x03\x04"sv,
     "is a zip archive (also files of PyTorch and of office programs are)",
     "if an alignment is in it, unpack it: unzip"},
    {"\xff\xfe\0\0"sv, "is UTF-32", "convert it: iconv -f UTF-32 -t UTF-8"},
    {"\0\0\xfe\xff"sv, "is UTF-32", "convert it: iconv -f UTF-32 -t UTF-8"},
    {"\xff\xfe"sv, "is UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff"sv, "is UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"},
    {"%PDF-"sv, "is a PDF", kGive},
};

// By the first line that is not empty.
constexpr AlignmentFormat kTextFormats[] = {
    {"CLUSTAL"sv, "is an alignment in Clustal's format", kConvert},
    {"MUSCLE ("sv, "is an alignment in Clustal's format", kConvert},
    {"PROBCONS"sv, "is an alignment in Clustal's format", kConvert},
    {"#NEXUS"sv, "is in NEXUS format", kConvert},
    {"!!AA_MULTIPLE_ALIGNMENT"sv, "is an alignment in MSF format", kConvert},
    {"!!NA_MULTIPLE_ALIGNMENT"sv, "is an alignment in MSF format", kConvert},
    {"PileUp"sv, "is an alignment in MSF format", kConvert},
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

// That is neither empty nor a comment.
std::string_view first_line(std::string_view bytes) {
  while (!bytes.empty()) {
    bytes.remove_prefix(std::min(bytes.find_first_not_of(" \t\r\n"), bytes.size()));
    const std::string_view line = bytes.substr(0, bytes.find_first_of("\r\n"));
    if (!line.starts_with('#') || line.starts_with("#NEXUS")) {
      return line;
    }
    bytes.remove_prefix(line.size());
  }
  return {};
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

std::string foreign_alignment(std::string_view bytes) {
  const AlignmentFormat* format = found(kBinaryFormats, bytes);
  if (format == nullptr) {
    if (is_safetensors(bytes)) {
      return fmt::format("holds tensors (safetensors) and no alignment; {}", kGive);
    }
    const std::string_view line = first_line(bytes);
    if (is_phylip(line)) {
      return fmt::format("is an alignment in Phylip's format, which is not read; {}", kConvert);
    }
    format = found(kTextFormats, line);
  }
  return format == nullptr ? ""
                           : fmt::format("{}, which is not read; {}", format->what, format->remedy);
}

}  // namespace paradyse
