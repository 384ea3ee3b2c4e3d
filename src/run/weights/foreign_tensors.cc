#include "src/run/weights/foreign_tensors.h"

#include <algorithm>
#include <cstddef>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/lower_case.h"

namespace paradyse {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t kForeignLength = 8;
constexpr std::size_t kForeignLooked = 512;

struct ForeignTensors {
  std::string_view begin;
  const char* what;
  std::size_t at = 0;  // byte
};

constexpr ForeignTensors kForeign[] = {
    {"PK\x03\x04"sv, "is a zip archive (torch.save and numpy.savez write such files)"},
    {"\x80\x02"sv, "is a pickle (older versions of torch.save write such files)"},
    {"\x80\x03"sv, "is a pickle"},
    {"\x80\x04"sv, "is a pickle"},
    {"\x80\x05"sv, "is a pickle"},
    {"\x93NUMPY"sv, "is an array of NumPy"},
    {"\x89HDF"sv, "is an HDF5 file"},
    {"GGUF"sv, "is a GGUF file"},
    {"\x1f\x8b"sv, "is compressed (gzip)"},
    {"\x28\xb5\x2f\xfd"sv, "is compressed (zstd)"},
    {"\xfd\x37zXZ"sv, "is compressed (xz)"},
    {"BZh"sv, "is compressed (bzip2)"},
    {"\x04\x22\x4d\x18"sv, "is compressed (lz4)"},
    {"ftyp"sv, "is a video (MP4)", 4},
    {"RIFF"sv, "is a video or a sound (RIFF)"},
    {"\x1a\x45\xdf\xa3"sv, "is a video (Matroska, WebM)"},
    {"GIF8"sv, "is a picture"},
    {"\x89PNG"sv, "is a picture"},
    {"\xff\xd8\xff"sv, "is a picture"},
    {"%PDF-"sv, "is a PDF"},
    {"version https://git-lfs"sv, "is a pointer of Git LFS, not the file itself (git lfs pull)"},
};

// By the text that it is.
const char* foreign_text(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) {
    text.remove_prefix(3);
  }
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (text.starts_with('{') || text.starts_with('[')) {
    return "is JSON";
  }
  if (text.starts_with('<')) {
    return "is XML or a web page";
  }
  if (text.starts_with('>')) {
    return "is an alignment or sequences (A3M, FASTA)";
  }
  if (text.starts_with('#') &&
      lower_case(std::string(text.substr(0, text.find('\n')))).find("stockholm") !=
          std::string::npos) {
    return "is an alignment (Stockholm)";
  }
  return "is text";
}

// Of a header that a reader accepts: less than 2^32 bytes, and an object.
bool may_be_safetensors(std::string_view bytes) {
  return bytes.size() > kForeignLength && bytes.substr(4, 4) == "\0\0\0\0"sv &&
         bytes[kForeignLength] == '{';
}

}  // namespace

std::string foreign_tensors(std::string_view bytes) {
  if (may_be_safetensors(bytes)) {
    return "";
  }
  for (const ForeignTensors& one : kForeign) {
    if (bytes.size() >= one.at && bytes.substr(one.at).starts_with(one.begin)) {
      return one.what;
    }
  }
  const std::string_view begin = bytes.substr(0, kForeignLooked);
  const bool text = !begin.empty() && std::ranges::none_of(begin, [](char letter) {
    const auto byte = static_cast<unsigned char>(letter);
    return (byte < ' ' && (byte < '\b' || byte > '\r')) || byte == 0x7f ||
           byte >= 0xf8;  // in no UTF-8
  });
  return text ? foreign_text(begin) : "";
}

std::string foreign_tensor_file(const std::filesystem::path& file) {
  const std::string begin = beginning_of(file, kForeignLooked);
  return begin.empty() ? "is empty" : foreign_tensors(begin);
}

}  // namespace paradyse
