#include "src/run/weights/weight_files.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <ranges>
#include <regex>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/lower_case.h"
#include "src/plan/base/refuse.h"
#include "src/plan/base/text_match.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhole = "model.safetensors";
// The largest tokenizers have some 30 MB.
constexpr std::uintmax_t kLargestCompanion = std::uintmax_t{64} << 20;

constexpr const char* kFetch =
    "fetch it again (hf download REPOSITORY --local-dir FOLDER continues where it stopped)";

// What files of other formats are, by how their names end, and how to have safetensors of them.
// "FOLDER" stands for the folder, "FILE" for the name.
struct Format {
  const char* end;
  const char* what;
  const char* remedy;
};
constexpr const char* kPickle = "a pickle of PyTorch, which may run code when it is read";
constexpr const char* kConvert =
    "convert it: python -c 'from transformers import AutoModelForCausalLM as M; "
    "M.from_pretrained(\"FOLDER\").save_pretrained(\"NEW\")' (of BERT AutoModelForMaskedLM), and "
    "give NEW";
constexpr const char* kConvertPickle =
    "convert it: python -c 'import torch; from safetensors.torch import save_file; "
    "save_file(torch.load(\"FILE\", weights_only=True), \"model.safetensors\")', where it holds "
    "tensors under Hugging Face's names";
constexpr const char* kConvertOld =
    "convert it with transformers 4: from_pretrained(\"FOLDER\", from_tf=True), or "
    "from_flax=True, and save_pretrained(\"NEW\")";
constexpr const char* kFinish = "a download that has not ended";
constexpr const char* kFetchSafetensors =
    "fetch or export the model as safetensors (save_pretrained of transformers)";
constexpr std::array kFormats = {
    Format{".incomplete", kFinish, kFetch},
    Format{".part", kFinish, kFetch},
    Format{".partial", "a file whose download or writing has not ended", kFetch},
    Format{".crdownload", kFinish, kFetch},
    Format{".download", kFinish, kFetch},
    Format{".aria2", kFinish, kFetch},
    Format{".bin", kPickle, kConvert},
    Format{".pt", kPickle, kConvertPickle},
    Format{".pth", kPickle, kConvertPickle},
    Format{".ckpt", kPickle, kConvertPickle},
    Format{".pkl", "a pickle, which may run code when it is read", kConvertPickle},
    Format{".pickle", "a pickle, which may run code when it is read", kConvertPickle},
    Format{
        ".gguf",
        "GGUF, of llama.cpp",
        "convert it: from_pretrained(\"FOLDER\", gguf_file=\"FILE\") of transformers, and "
        "save_pretrained(\"NEW\")"},
    Format{".ggml", "GGML, of llama.cpp", kFetchSafetensors},
    Format{".h5", "of TensorFlow", kConvertOld},
    Format{".keras", "of Keras", kFetchSafetensors},
    Format{".pb", "of TensorFlow", kFetchSafetensors},
    Format{".tflite", "of TensorFlow", kFetchSafetensors},
    Format{".msgpack", "of Flax", kConvertOld},
    Format{
        ".npz",
        "of NumPy",
        "convert it: safetensors.numpy.save_file(dict(numpy.load(\"FILE\")), "
        "\"model.safetensors\"), where names are Hugging Face's"},
    Format{".npy", "of NumPy", kFetchSafetensors},
    Format{".onnx", "ONNX, for inference", kFetchSafetensors},
    Format{".ot", "of rust-bert", kFetchSafetensors},
    Format{".mlmodel", "of Core ML", kFetchSafetensors},
    Format{".pdparams", "of PaddlePaddle", kFetchSafetensors},
    Format{".nemo", "of NeMo", kFetchSafetensors},
    Format{".distcp", "a distributed checkpoint of PyTorch", kFetchSafetensors},
};

// Of a training, not of a model.
bool is_training_state(const std::string& name) {
  static const char* const kBegin[] = {
      "training_args", "optimizer", "scheduler", "scaler", "rng_state", "random_states"};
  return std::ranges::any_of(kBegin, [&](const char* begin) { return name.starts_with(begin); });
}

const Format* format_of(const std::string& name) {
  const std::string plain = lower_case(name);
  const auto found = std::ranges::find_if(
      kFormats, [&](const Format& format) { return plain.ends_with(format.end); });
  if (found != kFormats.end()) {
    return &*found;
  }
  // TensorFlow's checkpoints: model.ckpt.index, model.ckpt-1000.data-00000-of-00001
  static const Format checkpoint{"", "a checkpoint of TensorFlow", kFetchSafetensors};
  return plain.find(".ckpt") != std::string::npos ? &checkpoint : nullptr;
}

std::string with_names(std::string text, const fs::path& folder, const std::string& name) {
  for (const auto& [word, value] :
       {std::pair{std::string("FOLDER"), folder.string()}, {std::string("FILE"), name}}) {
    for (std::size_t at = text.find(word); at != std::string::npos;
         at = text.find(word, at + value.size())) {
      text.replace(at, word.size(), value);
    }
  }
  return text;
}

bool is_safetensors(const std::string& name) { return lower_case(name).ends_with(".safetensors"); }

// A name in a folder, a link or what it leads to; `broken`: a link to nothing.
struct Entry {
  std::string name;
  bool broken = false;
  bool folder = false;
  std::uintmax_t size = 0;
};

std::vector<Entry> entries_of(const fs::path& folder) {
  std::vector<Entry> entries;
  for (const fs::path& path : paths_in(folder)) {
    std::error_code unknown;
    const fs::file_status status = fs::status(path, unknown);
    Entry entry{.name = path.filename().string()};
    entry.broken = !fs::exists(status);
    entry.folder = fs::is_directory(status);
    entry.size = fs::is_regular_file(status) ? fs::file_size(path, unknown) : 0;
    entries.push_back(std::move(entry));
  }
  std::ranges::sort(entries, {}, &Entry::name);
  return entries;
}

// Git leaves such a text in place of a file that it keeps elsewhere.
bool is_lfs_pointer(const fs::path& path) {
  constexpr std::string_view kPointer = "version https://git-lfs.github.com/spec/";
  return beginning_of(path, kPointer.size()) == kPointer;
}

// Throws unless there is something to read, whatever it is.
void expect_there(const fs::path& path) {
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(path, error)) && !fs::exists(path, error)) {
    refuse(
        path,
        "is a link to " + fs::read_symlink(path, error).string() +
            ", which is not there (a cache without its blobs?): " + kFetch);
  }
  if (!fs::is_regular_file(path, error)) {
    refuse(path, "is not a regular file; give the folder of a model with its weights in it");
  }
  if (is_lfs_pointer(path)) {
    refuse(
        path,
        "is a pointer of Git LFS, not the weights themselves: run git lfs pull in its folder, or "
        "fetch it again");
  }
  if (fs::file_size(path, error) == 0) {
    refuse(path, std::string("is empty: ") + kFetch);
  }
}

bool has(const std::vector<Entry>& entries, const std::string& name) {
  return std::ranges::any_of(entries, [&](const Entry& entry) { return entry.name == name; });
}

// "a, b and 3 more".
std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 4;
  return joined(names | std::views::take(kMost), ", ") +
         (names.size() > kMost ? " and " + std::to_string(names.size() - kMost) + " more" : "");
}

// The files that an index names; nothing where it is none (its reader says why).
std::set<std::string> shards_of(const fs::path& index) {
  std::set<std::string> shards;
  nlohmann::json content;
  try {
    content = json_in(why_not_readable(index).empty() ? content_of(index).value_or("") : "");
  } catch (const nlohmann::json::exception&) {
    return shards;
  }
  const auto map = content.is_object() ? content.find("weight_map") : content.end();
  if (content.is_object() && map != content.end() && map->is_object()) {
    for (const auto& [name, shard] : map->items()) {
      if (shard.is_string()) {
        shards.insert(shard.get<std::string>());
      }
    }
  }
  return shards;
}

std::vector<std::string> missing_of(const fs::path& folder, const std::set<std::string>& names) {
  std::vector<std::string> missing;
  std::error_code error;
  std::ranges::copy_if(names, std::back_inserter(missing), [&](const std::string& name) {
    return !fs::exists(fs::symlink_status(folder / name, error));
  });
  return missing;
}

void expect_shards(const fs::path& folder, const std::set<std::string>& shards) {
  const std::vector<std::string> missing = missing_of(folder, shards);
  if (!missing.empty()) {
    std::vector<std::string> begun;
    for (const Entry& entry : entries_of(folder)) {
      const Format* const format = format_of(entry.name);
      if (format != nullptr && std::string(format->remedy) == kFetch) {
        begun.push_back(entry.name);
      }
    }
    refuse(
        folder / kIndex,
        "names " + list_of(missing) + ", " + (missing.size() == 1 ? "which is" : "which are") +
            " not there (" + std::to_string(missing.size()) + " of " +
            std::to_string(shards.size()) + " files)" +
            (begun.empty() ? "" : "; " + list_of(begun) + ": a download that has not ended") +
            ": fetch them (hf download REPOSITORY --local-dir FOLDER continues where it stopped)");
  }
  for (const std::string& shard : shards) {
    expect_there(folder / shard);
  }
}

// "NAME-00001-of-00003.safetensors".
struct Shard {
  std::string name;
  std::string stem;
  int number = 0;
  int count = 0;
};

std::vector<Shard> numbered(const std::vector<Entry>& entries) {
  static const std::regex pattern(R"((.+)-(\d{1,6})-of-(\d{1,6})\.safetensors)");
  std::vector<Shard> shards;
  for (const Entry& entry : entries) {
    std::smatch parts;
    if (!entry.folder && std::regex_match(entry.name, parts, pattern)) {
      shards.push_back(
          {.name = entry.name,
           .stem = parts[1],
           .number = std::stoi(parts[2]),
           .count = std::stoi(parts[3])});
    }
  }
  return shards;
}

std::optional<WeightFiles> shards_without_index(
    const fs::path& folder, const std::vector<Entry>& entries) {
  const std::vector<Shard> shards = numbered(entries);
  if (shards.empty()) {
    return std::nullopt;
  }
  const Shard& first = shards.front();
  std::set<int> numbers;
  WeightFiles found;
  for (const Shard& shard : shards) {
    if (shard.stem != first.stem || shard.count != first.count) {
      refuse(
          folder,
          "has shards of two sets of weights, " + first.name + " and " + shard.name + ", and no " +
              kIndex + ": move one set away, or fetch the index");
    }
    numbers.insert(shard.number);
    found.files.push_back(folder / shard.name);
  }
  std::vector<std::string> missing;
  for (int number = 1; number <= first.count && missing.size() < 100; ++number) {
    if (!numbers.contains(number)) {
      missing.push_back(std::to_string(number));
    }
  }
  if (!missing.empty()) {
    refuse(
        folder,
        "has " + std::to_string(shards.size()) + " of " + std::to_string(first.count) +
            " shards (" + first.name + (shards.size() > 1 ? ", ..." : "") + "), and no " + kIndex +
            "; missing is number " + list_of(missing) +
            ": fetch the rest and the index (hf download REPOSITORY --local-dir FOLDER continues "
            "where it stopped)");
  }
  for (const fs::path& file : found.files) {
    expect_there(file);
  }
  found.notes.push_back(
      folder.string() + " has no " + kIndex + ": its " + std::to_string(first.count) + " shards, " +
      first.name + " and so on, are read together");
  return found;
}

// Of a folder without weights that can be read: what looks like some, each with its remedy.
std::vector<std::string> candidates(const fs::path& folder, const std::vector<Entry>& entries) {
  std::vector<std::string> found;
  for (const Entry& entry : entries) {
    if (entry.folder || entry.name.ends_with(".index.json")) {
      continue;
    }
    const Format* const format = format_of(entry.name);
    if (is_safetensors(entry.name)) {
      found.push_back(
          entry.name +
          (entry.broken ? ", a link to a file that is not there: fetch it again"
           : lower_case(entry.name).find("adapter") != std::string::npos
               ? ", weights of an adapter: merge them into the model that they were trained for "
                 "(merge_and_unload() of peft, then save_pretrained)"
               : ", which is not a name that is searched for: rename it to " + std::string(kWhole) +
                     " if it holds the whole model under Hugging Face's names"));
    } else if (format != nullptr && !is_training_state(entry.name)) {
      found.push_back(
          entry.name + ", " + format->what + ": " + with_names(format->remedy, folder, entry.name));
    } else if (format == nullptr && entry.size > kLargestCompanion) {
      found.push_back(
          entry.name + ", " + std::to_string(entry.size >> 20) +
          " MiB of a format that is not known: " + kFetchSafetensors);
    }
  }
  for (const Entry& entry : entries) {
    const fs::path below = folder / entry.name;
    if (!entry.folder) {
      continue;
    }
    for (const Entry& deep : entries_of(below)) {
      const bool weights = is_safetensors(deep.name) ||
                           (format_of(deep.name) != nullptr && !is_training_state(deep.name));
      if (weights && !deep.folder) {
        std::error_code error;
        found.push_back(
            (fs::path(entry.name) / deep.name).string() + ", in a folder below: " +
            (fs::exists(below / "config.json", error)
                 ? "give " + below.string() + " if that is the model"
                 : "move it beside config.json if it is of this model"));
        break;
      }
    }
  }
  // The hub's client keeps what it has begun in a hidden folder.
  const fs::path begun = folder / ".cache" / "huggingface" / "download";
  for (const Entry& entry : entries_of(begun)) {
    if (entry.name.ends_with(".incomplete")) {
      found.push_back((begun / entry.name).string() + ", " + kFinish + ": " + kFetch);
      break;
    }
  }
  return found;
}

}  // namespace

bool is_weights_name(const std::string& name) {
  return is_safetensors(name) || format_of(name) != nullptr || is_training_state(name) ||
         name.ends_with(".index.json") || name == "adapter_config.json";
}

WeightFiles weight_files(const fs::path& folder) {
  const std::vector<Entry> entries = entries_of(folder);
  const bool whole = has(entries, kWhole);
  const bool index = has(entries, kIndex);
  WeightFiles found;
  const auto not_read = [&](const std::set<std::string>& read) {
    std::vector<std::string> others;
    for (const Entry& entry : entries) {
      if (is_safetensors(entry.name) && !read.contains(entry.name)) {
        others.push_back(entry.name);
      }
    }
    if (!others.empty()) {
      found.notes.push_back(folder.string() + ": " + list_of(others) + ": not read");
    }
  };
  if (index) {
    expect_there(folder / kIndex);
  }
  const std::set<std::string> shards = index ? shards_of(folder / kIndex) : std::set<std::string>{};
  if (whole) {
    expect_there(folder / kWhole);
    const bool of_it = shards.size() == 1 && shards.contains(kWhole);
    if (index && !of_it && missing_of(folder, shards).size() < shards.size()) {
      refuse(
          folder,
          std::string("holds two sets of weights: ") + kWhole + ", and " + kIndex + " with " +
              std::to_string(shards.size()) + " files: move one of them to another folder");
    }
    if (index && !of_it) {
      found.notes.push_back(
          folder.string() + ": " + kWhole + " is read; the files that " + kIndex +
          " names are not there");
    }
    found.files = {folder / kWhole};
    not_read({kWhole});
    return found;
  }
  if (index) {
    expect_shards(folder, shards);
    found.files = {folder / kIndex};
    not_read(shards);
    return found;
  }
  if (const auto together = shards_without_index(folder, entries)) {
    return *together;
  }
  const std::vector<std::string> others = candidates(folder, entries);
  std::string message = std::string("has no weights that can be read: neither ") + kWhole +
                        " nor " + kIndex + " is there";
  for (const std::string& other : others) {
    message += "; there is " + other;
  }
  refuse(
      folder,
      message + (others.empty() ? "; fetch them" : "") +
          "; for random weights say --random-weights, or model.random_weights = true in a run's "
          "configuration");
}

std::vector<std::string> copy_companions(const fs::path& from, const fs::path& to) {
  std::vector<std::string> left_out;
  std::vector<std::string> failed;
  const auto copy = [&](const fs::path& name) {
    std::error_code error;
    if (!fs::exists(fs::symlink_status(to / name, error))) {
      fs::copy_file(from / name, to / name, error);
      if (error) {  // what was trained is worth more than a file beside it
        failed.push_back(name.string() + " (" + error.message() + ")");
      }
    }
  };
  const auto hidden = [](const Entry& entry) { return entry.name.starts_with("."); };
  const auto small = [&](const Entry& entry) {
    return !entry.folder && !is_weights_name(entry.name) && entry.size <= kLargestCompanion;
  };
  const std::vector<Entry> entries = entries_of(from);
  if (entries.empty()) {
    return {from.string() + " is not there any more: no files of the tokenizer were copied"};
  }
  for (const Entry& entry : entries) {
    std::error_code error;
    const fs::path path = from / entry.name;
    if (hidden(entry)) {
      continue;
    }
    if (!entry.folder) {
      if (entry.broken) {
        failed.push_back(entry.name + " (a link to nothing)");
      } else if (!fs::is_regular_file(path, error)) {
        left_out.push_back(entry.name);
      } else if (small(entry)) {
        copy(entry.name);
      } else if (!is_weights_name(entry.name)) {
        left_out.push_back(entry.name);
      }
      continue;
    }
    // additional_chat_templates/ and its like: files alone; not what holds a model of its own, or
    // the run.
    const std::vector<Entry> below = entries_of(path);
    const bool companion = !below.empty() && std::ranges::all_of(below, [&](const Entry& one) {
      return hidden(one) || (small(one) && !one.broken);
    });
    if (!companion || fs::exists(path / "config.toml", error)) {
      left_out.push_back(entry.name + "/");
      continue;
    }
    fs::create_directory(to / entry.name, error);
    for (const Entry& one : below) {
      if (!hidden(one)) {
        copy(fs::path(entry.name) / one.name);
      }
    }
  }
  std::vector<std::string> notes;
  if (!left_out.empty()) {
    notes.push_back(
        "not copied from " + from.string() +
        ", as too large or no files of the tokenizer: " + list_of(left_out));
  }
  if (!failed.empty()) {
    notes.push_back("could not be copied from " + from.string() + ": " + list_of(failed));
  }
  return notes;
}

}  // namespace paradyse
