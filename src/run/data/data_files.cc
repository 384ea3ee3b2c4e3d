#include "src/run/data/data_files.h"

#include <algorithm>
#include <set>
#include <span>
#include <stdexcept>
#include <system_error>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/lower_case.h"
#include "src/plan/base/refuse.h"
#include "src/plan/tokens/indexed_tokens.h"
#include "src/plan/tokens/llmc_tokens.h"
#include "src/plan/tokens/mapped_file.h"
#include "src/run/data/file_pattern.h"
#include "src/run/data/json_line.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;

std::string ending(const fs::path& path) { return lower_case(path.extension().string()); }

bool is_lines(const std::string& end) { return end == ".jsonl" || end == ".ndjson"; }

// A file format that holds documents and is not read.
struct Unread {
  const char* ending;
  const char* what;
};

constexpr const char* kAsJsonl =
    "write its rows as JSONL, a document a line (datasets: to_json(\"data.jsonl\"))";

constexpr Unread kTables[] = {
    {".parquet", "is a Parquet file"},
    {".arrow", "is an Arrow file"},
    {".feather", "is a Feather file"},
    {".orc", "is an ORC file"},
    {".avro", "is an Avro file"},
    {".tfrecord", "is a TFRecord file"},
    {".tfrecords", "is a TFRecord file"},
    {".mds", "is an MDS shard"},
};

constexpr Unread kCompressed[] = {
    {".gz", "gunzip"},
    {".zst", "zstd -d"},
    {".bz2", "bunzip2"},
    {".xz", "unxz"},
    {".lz4", "lz4 -d"},
    {".zip", "unzip"},
    {".tar", "tar -xf"},
    {".tgz", "tar -xf"},
    {".7z", "7z x"},
};

// Given by their own names; in a folder such files may be anything, and are left out as binary.
constexpr const char* kIds = R"(write its ids as JSONL, {"tokens": [...]} a document a line)";
constexpr const char* kItsText = "give its text, as .txt or JSONL";

struct Binary {
  const char* ending;
  const char* what;
  const char* remedy;
};

constexpr Binary kBinaries[] = {
    {".bin", "is neither Megatron's, with its .idx beside it, nor llm.c's", kIds},
    {".idx", "is no index of Megatron with its .bin beside it", kIds},
    {".npy", "is an array of NumPy", kIds},
    {".npz", "is an archive of NumPy", kIds},
    {".pt", "is a file of PyTorch", kIds},
    {".pth", "is a file of PyTorch", kIds},
    {".pkl", "is a pickle", kIds},
    {".pickle", "is a pickle", kIds},
    {".safetensors", "holds tensors", kIds},
    {".h5", "is an HDF5 file", kIds},
    {".hdf5", "is an HDF5 file", kIds},
    {".db", "is a database", kAsJsonl},
    {".sqlite", "is a database", kAsJsonl},
    {".xls", "is a spreadsheet", kAsJsonl},
    {".xlsx", "is a spreadsheet", kAsJsonl},
    {".pdf", "is a PDF", kItsText},
    {".doc", "is a document of Word", kItsText},
    {".docx", "is a document of Word", kItsText},
    {".odt", "is a document of an office program", kItsText},
    {".epub", "is an EPUB", kItsText},
};

const Unread* find(std::span<const Unread> table, const std::string& end) {
  const auto found =
      std::ranges::find_if(table, [&](const Unread& one) { return one.ending == end; });
  return found == table.end() ? nullptr : &*found;
}

// Why a file of this name is not read though it holds documents, or "".  `given`: by its own name;
// in a folder an archive may be anything.
std::string unread(const fs::path& path, bool given) {
  const std::string end = ending(path);
  if (const Unread* const table = find(kTables, end)) {
    return fmt::format("{}, which is not read; {}", table->what, kAsJsonl);
  }
  if (const Unread* const packed = find(kCompressed, end)) {
    const std::string inner = ending(path.stem());
    const bool data = is_lines(inner) || inner == ".json" || inner == ".txt" || inner == ".csv" ||
                      find(kTables, inner) != nullptr;
    if (given || data) {
      return fmt::format(
          "is compressed, which is not read; unpack it ({} {})",
          packed->what,
          path.filename().string());
    }
  }
  if (given && (end == ".csv" || end == ".tsv")) {
    return fmt::format("is a table, whose rows are not read; {}", kAsJsonl);
  }
  const auto binary =
      std::ranges::find_if(kBinaries, [&](const Binary& one) { return one.ending == end; });
  if (given && binary != std::end(kBinaries)) {
    return fmt::format("{}, which is not read; {}", binary->what, binary->remedy);
  }
  return "";
}

// Whether X.bin holds ids: Megatron's with an X.idx beside it, or llm.c's.
bool holds_tokens(const fs::path& bin) {
  if (ending(bin) != ".bin") {
    return false;
  }
  const fs::path index = index_of(bin);
  std::error_code error;
  if (!fs::exists(index, error)) {
    return is_llmc(bin);
  }
  constexpr std::string_view kMagic = "MMIDIDX";
  return beginning_of(index, kMagic.size()) == kMagic;
}

// X.bin of X.idx, X.labels.bin, ...
fs::path bin_of(fs::path path) {
  path.replace_extension();
  if (const std::string kind = ending(path); kind == ".labels" || kind == ".sources") {
    path.replace_extension();
  }
  return path += ".bin";
}

// Whether a file says something of the ids of another: X.idx, X.labels.bin, ... of X.bin.
bool is_beside_tokens(const fs::path& path) {
  const std::string end = ending(path);
  const fs::path bin = bin_of(path);
  return (end == ".idx" || (end == ".bin" && bin.stem() != path.stem())) && holds_tokens(bin);
}

// What a .json file holds.
enum class Json { documents, list_of_documents, other };

Json json_kind(const fs::path& path) {
  constexpr std::size_t kLooked = 65536;
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // of UTF-8
  constexpr std::string_view kSpace = " \t\r\n";
  const MappedFile file(path);
  std::string_view text = file.bytes();
  text.remove_prefix(text.starts_with(kMark) ? kMark.size() : 0);
  text.remove_prefix(std::min(text.substr(0, kLooked).find_first_not_of(kSpace), text.size()));
  if (text.starts_with('{')) {
    const std::string_view line = line_at(text, 0);
    // Of a longer line its reader says that it is no document.
    return line.size() > kMostContent || holds_document(std::string(line)) ? Json::documents
                                                                           : Json::other;
  }
  if (text.starts_with('[')) {
    const std::string_view begin = text.substr(0, kLooked);
    const std::size_t next = begin.find_first_not_of(kSpace, 1);
    if (next != std::string_view::npos && begin[next] == '{') {
      for (const char* const key : {"\"tokens\"", "\"input_ids\"", "\"text\"", "\"messages\""}) {
        if (begin.find(key) != std::string_view::npos) {
          return Json::list_of_documents;
        }
      }
    }
  }
  return Json::other;
}

[[noreturn]] void refuse_list(const fs::path& path) {
  refuse(
      path,
      fmt::format(
          "is one JSON list; write one document a line: jq -c '.[]' {} > {}",
          path.filename().string(),
          fs::path(path.filename()).replace_extension(".jsonl").string()));
}

// A folder that a run of this program made.
bool is_run(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / "config.toml", error) &&
         (fs::exists(folder / "metrics.jsonl", error) || fs::exists(folder / "plans", error));
}

// Finds files, and remembers what it saw.
class Finder {
 public:
  explicit Finder(const DataOptions& options) {
    for (const fs::path& path : options.no_data) {
      std::error_code error;
      const fs::path real = fs::canonical(path, error);
      if (!error) {
        no_data_.insert(real.native());
      }
    }
  }

  // What a user gave as the path of this number.
  void take_given(const fs::path& path, std::size_t number) {
    const std::size_t first = found_.files.size();
    take_path(path);
    for (std::size_t i = first; i < found_.files.size(); ++i) {
      DataFile& file = found_.files[i];
      file.given = number;
      std::string below = file.path.lexically_relative(path).generic_string();
      const bool inside = !below.empty() && below != "." && !below.starts_with("..");
      file.below = inside ? std::move(below) : file.path.filename().string();
    }
  }

  DataFiles found() && { return std::move(found_); }

  static constexpr const char* kAccepted =
      "give a folder of text files or a .jsonl file, a text file, a folder of paradyse-data, "
      "Megatron's or llm.c's .bin, or a pattern as in 'data/*.jsonl'";

 private:
  void take_path(const fs::path& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (fs::is_directory(status)) {
      take_folder(path);
    } else if (fs::exists(status) && !error) {
      take_named(path, fs::is_regular_file(status));
    } else if (status.type() != fs::file_type::not_found) {
      refuse(path, "cannot be read: " + error.message());
    } else if (is_pattern(path)) {
      take_pattern(path);
    } else if (const fs::path bin = path.native() + ".bin"; holds_tokens(bin)) {  // Megatron's way
      take_named(bin, /*regular=*/true);
    } else {
      refuse(path, fmt::format("is not there; {}", kAccepted));
    }
  }

  void take_folder(const fs::path& folder) {
    std::error_code error;
    const fs::path real = fs::canonical(folder, error);
    if (error) {
      refuse(folder, "cannot be read: " + error.message());
    }
    std::vector<fs::path> paths;
    walk(folder, real, paths);
    take_sorted(std::move(paths));
  }

  // Files below `folder`, whose real path is `real`.
  void walk(const fs::path& folder, const fs::path& real, std::vector<fs::path>& paths) {
    if (is_prepared(folder)) {
      take_prepared(folder, real, paths);
      return;
    }
    std::error_code error;
    fs::directory_iterator entries(folder, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
      const fs::path& path = entries->path();
      const fs::path here = real / path.filename();
      if (path.filename().native().front() == '.') {
        leave_out(found_.left_out, kHidden, path);
        continue;
      }
      if (no_data_.contains(here.native())) {
        leave_out(found_.left_out, kOutput, path);
        continue;
      }
      std::error_code gone;
      const bool link = entries->is_symlink(gone);
      const fs::file_status status = fs::status(path, gone);
      if (fs::is_regular_file(status)) {
        const fs::path behind = link ? fs::canonical(path, gone) : here;
        if (gone) {
          refuse(path, "cannot be read: " + gone.message());
        }
        take_met(behind, path, paths);
      } else if (link) {  // skipping it would silently train on less
        refuse(
            path,
            "is a link to a folder or to nothing, which is not followed; link files, or remove it");
      } else if (fs::is_directory(status)) {
        if (is_run(path)) {
          leave_out(found_.left_out, kOutput, path);
        } else {
          walk(path, here, paths);
        }
      } else if (gone) {
        refuse(path, "cannot be read: " + gone.message());
      } else {
        leave_out(found_.left_out, kNoFile, path);
      }
    }
    if (error) {
      refuse(folder, "cannot be read: " + error.message());
    }
  }

  // The shards of a folder of paradyse-data.
  void take_prepared(const fs::path& folder, const fs::path& real, std::vector<fs::path>& paths) {
    const auto prepared = std::make_shared<const PreparedFolder>(read_prepared(folder));
    for (std::size_t i = 0; i < prepared->shards.size(); ++i) {
      const std::string name = prepared->shards[i].name + ".bin";
      if (!holds_tokens(folder / name)) {
        refuse(
            folder,
            fmt::format(
                "data.json names the shard {}, which is not there with its .idx; copy or prepare "
                "the folder again",
                name));
      }
      shards_[folder / name] = {prepared, i};
      take_met(real / name, folder / name, paths);
    }
  }

  // A file that was met below a folder or by a pattern.
  void take_met(const fs::path& real, const fs::path& path, std::vector<fs::path>& paths) {
    if (no_data_.contains(real.native())) {
      leave_out(found_.left_out, kOutput, path);
    } else if (is_new(real, path)) {
      paths.push_back(path);
    }
  }

  // Whether a file was not met before, under any name.
  bool is_new(const fs::path& real, const fs::path& path) {
    if (seen_.insert(real.native()).second) {
      return true;
    }
    leave_out(found_.left_out, kReadAlready, path);
    return false;
  }

  // Files of a folder, or of a pattern: by what they are.
  void take_sorted(std::vector<fs::path> paths) {
    // Byte by byte: the same on every machine and in every locale.
    std::ranges::sort(
        paths, [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
    std::vector<DataFile> files;
    bool lines = false;
    for (const fs::path& path : paths) {
      const std::string end = ending(path);
      const std::string why = unread(path, /*given=*/false);
      if (!why.empty()) {
        refuse(path, why);
      }
      if (is_beside_tokens(path)) {
        if (path.stem().extension() == ".sources" && !shards_.contains(bin_of(path))) {
          refuse(
              path.parent_path(),
              is_prepared(path.parent_path())
                  ? "is a folder of paradyse-data; give the folder, not its files"
                  : "is a folder of paradyse-data without its data.json: it is not finished; run "
                    "paradyse-data to its end");
        }
        continue;
      }
      DataFile file{
          .path = path, .holds = is_lines(end) ? Holds::lines : Holds::text, .text = end == ".txt"};
      if (holds_tokens(path)) {
        file = tokens_at(path);
      } else if (end == ".json") {
        const Json kind = json_kind(path);
        if (kind == Json::list_of_documents) {
          refuse_list(path);
        }
        file.holds = kind == Json::documents ? Holds::lines : Holds::text;
      } else if (file.holds == Holds::text && !file.text) {  // a shard whose name does not say so
        file.holds = json_kind(path) == Json::documents ? Holds::lines : Holds::text;
      }
      lines = lines || file.holds != Holds::text;
      files.push_back(std::move(file));
    }
    for (DataFile& file : files) {
      if (lines && file.holds == Holds::text && !file.text) {
        leave_out(found_.left_out, kBesideJsonl, file.path);
      } else {
        found_.files.push_back(std::move(file));
      }
    }
  }

  // A file that was given by its own name.
  void take_named(const fs::path& path, bool regular) {
    const std::string end = ending(path);
    if (regular && is_beside_tokens(path)) {  // as where a shell makes names of *.bin
      take_named(bin_of(path), regular);
      return;
    }
    const bool tokens = regular && holds_tokens(path);
    const std::string why = tokens ? "" : unread(path, /*given=*/true);
    if (!why.empty()) {
      refuse(path, why);
    }
    std::error_code error;
    if (regular && !is_new(fs::canonical(path, error), path)) {
      return;
    }
    if (tokens) {
      found_.files.push_back(tokens_at(path));
      return;
    }
    if (end == ".json" && regular) {
      switch (json_kind(path)) {
        case Json::documents:
          found_.files.push_back({.path = path, .holds = Holds::lines});
          return;
        case Json::list_of_documents:
          refuse_list(path);
        case Json::other:
          refuse(
              path,
              "holds no documents; a .json file takes a line a document, an object with tokens "
              "(ids) or text");
      }
    }
    const bool shard = regular && end != ".txt" && json_kind(path) == Json::documents;
    found_.files.push_back(
        {.path = path, .holds = is_lines(end) || shard ? Holds::lines : Holds::text, .text = true});
  }

  void take_pattern(const fs::path& pattern) {
    if (pattern.native().find("**") != std::string::npos) {
      refuse(pattern, "** is not supported; give the folder, which is read with its subfolders");
    }
    const std::vector<fs::path> paths = matches_of(pattern);
    if (paths.empty()) {
      refuse(pattern, fmt::format("matches no file; {}", kAccepted));
    }
    std::vector<fs::path> files;
    for (const fs::path& path : paths) {
      std::error_code error;
      const fs::path real = fs::canonical(path, error);
      const fs::file_status status_of = fs::status(path, error);
      if (!error && no_data_.contains(real.native())) {
        leave_out(found_.left_out, kOutput, path);
      } else if (fs::is_regular_file(status_of)) {
        take_met(real, path, files);
      } else if (fs::is_directory(status_of)) {
        if (is_run(path)) {
          leave_out(found_.left_out, kOutput, path);
        } else {
          walk(path, real, files);
        }
      } else if (error) {
        refuse(path, "cannot be read: " + error.message());
      } else {
        leave_out(found_.left_out, kNoFile, path);
      }
    }
    take_sorted(std::move(files));
  }

  [[nodiscard]] DataFile tokens_at(const fs::path& path) const {
    DataFile file{.path = path, .holds = Holds::tokens};
    if (const auto shard = shards_.find(path); shard != shards_.end()) {
      std::tie(file.prepared, file.shard) = shard->second;
    }
    return file;
  }

  DataFiles found_;
  // [path of its .bin] A prepared folder, and the number of its shard.
  std::map<fs::path, std::pair<std::shared_ptr<const PreparedFolder>, std::size_t>> shards_;
  std::set<std::string> no_data_;  // real paths
  std::set<std::string> seen_;     // real paths of files
};

// Whether bytes are UTF-8; a character may be cut off at the end.
bool is_utf8(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const std::size_t more = lead < 0x80   ? 0
                             : lead < 0xc2 ? 4
                             : lead < 0xe0 ? 1
                             : lead < 0xf0 ? 2
                             : lead < 0xf5 ? 3
                                           : 4;
    if (more == 4) {
      return false;
    }
    for (std::size_t k = 1; k <= more && i + k < bytes.size(); ++k) {
      if ((static_cast<unsigned char>(bytes[i + k]) & 0xc0) != 0x80) {
        return false;
      }
    }
    i += more + 1;
  }
  return true;
}

}  // namespace

DataFiles data_files(const DataOptions& options) {
  if (options.paths.empty()) {
    throw std::runtime_error(fmt::format("no data is named; {}", Finder::kAccepted));
  }
  Finder finder(options);
  for (std::size_t i = 0; i < options.paths.size(); ++i) {
    finder.take_given(options.paths[i], i);
  }
  return std::move(finder).found();
}

void leave_out(std::map<std::string, LeftOut>& left_out, const char* why, const fs::path& path) {
  LeftOut& one = left_out[why];
  if (one.files++ == 0) {
    one.first = path.filename().string();
  }
}

std::string foreign_format(std::string_view bytes) {
  struct Magic {
    std::string_view bytes;
    const char* what;
  };
  using namespace std::string_view_literals;
  constexpr const char* kUtf16 = "is UTF-16; convert it: iconv -f UTF-16 -t UTF-8";
  constexpr const char* kUtf32 = "is UTF-32; convert it: iconv -f UTF-32 -t UTF-8";
  constexpr const char* kPacked = "is compressed, which is not read; unpack it";
  constexpr const char* kPicture = "is a picture; give text";
  static constexpr Magic kMagic[] = {
      {"\xff\xfe\0\0"sv, kUtf32},
      {"\0\0\xfe\xff"sv, kUtf32},
      {"\xff\xfe"sv, kUtf16},
      {"\xfe\xff"sv, kUtf16},
      {"\x1f\x8b"sv, kPacked},
      {"\x28\xb5\x2f\xfd"sv, kPacked},
      {"BZh9"sv, kPacked},
      {"\xfd\x37zXZ"sv, kPacked},
      {"PK\x03\x04"sv, kPacked},
      {"PAR1"sv, "is a Parquet file, which is not read; write its rows as JSONL"},
      {"ARROW1"sv, "is an Arrow file, which is not read; write its rows as JSONL"},
      {"%PDF-"sv, "is a PDF; give its text"},
      {"\x89PNG"sv, kPicture},
      {"\xff\xd8\xff"sv, kPicture},
      {"GIF8"sv, kPicture},
  };
  for (const Magic& magic : kMagic) {
    if (bytes.starts_with(magic.bytes)) {
      return magic.what;
    }
  }
  return "";
}

std::string no_text(std::string_view bytes) {
  std::string why = foreign_format(bytes);
  if (!why.empty()) {
    return why;
  }
  if (const std::size_t nul = bytes.find('\0'); nul != std::string_view::npos) {
    return fmt::format(
        "has a NUL byte (byte {}), which text does not have: it is binary, UTF-16 or damaged; "
        "repair it, or leave it out",
        nul);
  }
  constexpr std::size_t kLooked = 65536;
  bytes = bytes.substr(0, kLooked);
  if (is_utf8(bytes)) {
    return "";
  }
  const auto controls = std::ranges::count_if(bytes, [](char letter) {
    const auto byte = static_cast<unsigned char>(letter);
    return (byte < ' ' && (byte < '\b' || byte > '\r') && byte != 0x1b) || byte == 0x7f;
  });
  constexpr std::int64_t kOneIn = 20;  // bytes of other encodings are letters above 127
  return controls * kOneIn > std::ssize(bytes)
             ? "is not UTF-8 and is full of control characters: it is a binary file; give text"
             : "";
}

}  // namespace paradyse
