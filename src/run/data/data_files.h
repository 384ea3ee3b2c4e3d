// Which files a user means by the paths of a data set.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "paradyse/run/data.h"
#include "src/run/data/prepared_folder.h"

namespace paradyse {

// Why files are left out: keys of DataCounts::left_out.
inline constexpr const char* kHidden = "hidden";
inline constexpr const char* kBinary = "binary";
inline constexpr const char* kOutput = "output of runs, model, or data.eval_path";
inline constexpr const char* kReadAlready = "read already";
inline constexpr const char* kBesideJsonl = "beside JSONL";
inline constexpr const char* kNoFile = "pipe or socket";

enum class Holds { text, lines, tokens };  // one document; one a line; ids (token_file())

struct DataFile {
  std::filesystem::path path;
  Holds holds = Holds::text;
  bool text = false;       // surely meant as text: given by its own name, or .txt
  std::string below = {};  // its name below the path that was given
  std::size_t given = 0;   // the number of that path
  // Of a shard of a prepared folder.
  std::shared_ptr<const PreparedFolder> prepared = {};
  std::size_t shard = 0;
};

struct DataFiles {
  std::vector<DataFile> files;
  std::map<std::string, LeftOut> left_out;
};

// As read_corpus() says, without the contents of text files: whether those are text is said by
// no_text().
DataFiles data_files(const DataOptions& options);

// Counts a file that is left out.
void leave_out(
    std::map<std::string, LeftOut>& left_out, const char* why, const std::filesystem::path& path);

// Why bytes at the beginning of a file are no text and no JSONL ("is compressed (gzip): ..."), or
// "".
std::string foreign_format(std::string_view bytes);

// Why the bytes of a file are no text, or "".
std::string no_text(std::string_view bytes);

}  // namespace paradyse
