// Alignments as files: which format a file has, and its lines.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "src/plan/base/bytes_text.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/refuse.h"
#include "src/run/data/evoformer/alignment_formats.h"
#include "src/run/data/evoformer/alignment_rows.h"
#include "src/run/device/host_memory.h"

namespace paradyse {
namespace {

std::string content_of_alignment(const std::filesystem::path& file) {
  if (const std::string why = why_not_readable(file); !why.empty()) {
    refuse(file, "cannot be read: " + why);
  }
  // The content, its rows, their columns, letters and deletions.
  constexpr std::int64_t kBytesALetter = 16;
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(file));
  const std::int64_t available = available_memory();
  if (bytes > available / kBytesALetter) {
    refuse(
        file,
        fmt::format(
            "has {}, and reading it takes {} times as much memory, of which {} are available; "
            "keep fewer sequences or alignments in a file",
            bytes_text(bytes),
            kBytesALetter,
            bytes_text(available)));
  }
  std::string content = content_of(file, static_cast<std::size_t>(bytes)).value_or("");
  if (std::cmp_not_equal(content.size(), bytes)) {
    refuse(file, "was changed while it was read");
  }
  return content;
}

// Ended by LF, CR LF, CR, or CR CR LF, which two conversions of CR LF leave.
std::vector<AlignmentLine> lines_of(std::string_view content, const std::filesystem::path& file) {
  std::vector<AlignmentLine> lines;
  while (!content.empty()) {
    const std::size_t end = std::min(content.find_first_of("\r\n"), content.size());
    std::string_view text = content.substr(0, end);
    const std::string_view rest = content.substr(end);
    const std::size_t line_feed = std::min(rest.find_first_not_of('\r'), rest.size());
    const std::size_t mark = line_feed < rest.size() && rest[line_feed] == '\n' ? line_feed + 1 : 1;
    content.remove_prefix(std::min(end + mark, content.size()));
    if (text.starts_with(kByteOrderMark)) {
      refuse_line(
          file,
          lines.size() + 1,
          lines.empty() ? "begins with two byte order marks: remove one"
                        : "begins with a byte order mark, as files do: several files were joined "
                          "here; give each by itself");
    }
    if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
      refuse_line(
          file,
          lines.size() + 1,
          fmt::format(
              "has a NUL byte (byte {}), which alignments do not have: it is damaged, UTF-16, or "
              "several A3M files in one; repair it, convert it to UTF-8, or split it",
              nul));
    }
    text = text.substr(0, text.find_last_not_of(" \t") + 1);
    lines.push_back({.text = text, .number = lines.size() + 1});
  }
  return lines;
}

}  // namespace

std::vector<Alignment> read_alignment_file(
    const std::filesystem::path& file, const AlignmentReading& reading) {
  const std::string content = content_of_alignment(file);
  std::string_view text = content;
  if (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  if (const std::string what = foreign_alignment(text, file); !what.empty()) {
    refuse(file, what);
  }
  const std::vector<AlignmentLine> lines = lines_of(text, file);
  const auto first = std::ranges::find_if(lines, [&](const AlignmentLine& line) {
    return is_stockholm_header(line.text) || !(line.text.empty() || line.text.starts_with('#'));
  });
  const bool is_stockholm = first != lines.end() && is_stockholm_header(first->text);
  std::vector<Alignment> all =
      is_stockholm ? read_stockholm(lines, file, reading) : read_fasta(lines, file, reading);
  if (all.empty()) {
    refuse(file, "has no sequences; give an alignment, Stockholm or A3M");
  }
  return all;
}

MaskedResidues masked_residues(const std::string& name) {
  if (name == "none") {
    return MaskedResidues::none;
  }
  if (name == "marked") {
    return MaskedResidues::marked;
  }
  if (name == "unknown") {
    return MaskedResidues::unknown;
  }
  throw std::invalid_argument("masked residues: '" + name + "' is not none, marked or unknown");
}

MaskedLetters masked_letters(const std::string& name) {
  if (name == "none") {
    return MaskedLetters::none;
  }
  if (name == "marked") {
    return MaskedLetters::marked;
  }
  if (name == "ends") {
    return MaskedLetters::ends;
  }
  throw std::invalid_argument("masked letters: '" + name + "' is not none, marked or ends");
}

}  // namespace paradyse
