// The configuration of a run: its file and --set are read into the fields (fields.h).
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>

#include "paradyse/plan/config.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/dtype.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/text_match.h"
#include "src/plan/base/toml_text.h"
#include "src/plan/config/fields.h"

namespace paradyse {

namespace {

// Puts a value into a field; `text` is what stands there, `where` who says it.
class Reader {
 public:
  Reader(const Field& field, const toml::node& node, std::string text, std::string where)
      : field_(field), node_(node), text_(std::move(text)), where_(std::move(where)) {}

  void read() const {
    std::visit([this](auto* into) { put(*into); }, field_.value);
  }

 private:
  [[noreturn]] void refuse() const {
    constexpr std::size_t kShown = 80;
    const std::string shown = text_.size() > kShown ? text_.substr(0, kShown) + "..." : text_;
    std::string near;
    if (const auto* string = node_.as_string()) {
      near = did_you_mean(string->get(), field_.accepted);
    }
    throw std::invalid_argument(
        where_ + ": " + field_.key + " is " + shown + near + "; accepted is " +
        accepted_text(field_));
  }

  // Nothing on this machine has a name with one, and what is told would end there.
  void expect_no_nul(const std::string& text) const {
    if (text.find('\0') != std::string::npos) {
      throw std::invalid_argument(
          where_ + ": " + field_.key + " has a NUL byte (\\u0000); leave it out");
    }
  }

  void put(std::string& into) const {
    if (const auto* string = node_.as_string()) {
      expect_no_nul(string->get());
      into = current_name(string->get(), field_.renamed);
    } else if ((field_.amount || field_.id) && node_.is_integer()) {
      into = std::to_string(node_.as_integer()->get());
    } else {
      refuse();
    }
    const auto& accepted = field_.accepted;
    if (!accepted.empty() && std::find(accepted.begin(), accepted.end(), into) == accepted.end()) {
      refuse();
    }
    if (field_.id && into != "auto" && into != "none" &&
        (into.empty() || into.size() > 10 ||
         into.find_first_not_of("0123456789") != std::string::npos)) {
      refuse();
    }
  }

  void put(std::vector<std::string>& into) const {
    into.clear();
    if (const auto* string = node_.as_string()) {
      expect_no_nul(string->get());
      if (!string->get().empty()) {
        into.push_back(string->get());
      }
      return;
    }
    const auto* list = node_.as_array();
    if (list == nullptr) {
      refuse();
    }
    for (const toml::node& one : *list) {
      const auto* string = one.as_string();
      if (string == nullptr || string->get().empty()) {
        refuse();
      }
      expect_no_nul(string->get());
      into.push_back(string->get());
    }
  }

  void put(std::vector<double>& into) const {
    into.clear();
    const auto* list = node_.as_array();
    if (list == nullptr) {
      refuse();
    }
    for (const toml::node& one : *list) {
      const std::optional<double> number = one.is_number() ? one.value<double>() : std::nullopt;
      if (!number || !field_.range.contains(*number)) {
        refuse();
      }
      into.push_back(*number);
    }
  }

  void put(Dtype& into) const {
    std::string name;
    put(name);
    into = dtype_named(name);
  }

  template <typename Integer>
  void put(Integer& into) const {
    const auto* string = node_.as_string();  // "32K"
    const std::optional<std::int64_t> integer =
        string != nullptr ? whole_number(string->get()) : node_.value_exact<std::int64_t>();
    if (!integer || !field_.range.contains(static_cast<double>(*integer))) {
      refuse();
    }
    into = static_cast<Integer>(*integer);
  }

  void put(double& into) const {
    const std::optional<double> number = node_.is_number() ? node_.value<double>() : std::nullopt;
    if (!number || !field_.range.contains(*number)) {
      refuse();
    }
    into = *number;
  }

  void put(bool& into) const {
    const auto* truth = node_.as_boolean();
    if (truth == nullptr) {
      refuse();
    }
    into = truth->get();
  }

  const Field& field_;
  const toml::node& node_;
  std::string text_;
  std::string where_;
};

std::string text_of(const toml::node& node) {
  std::ostringstream text;
  node.visit([&text](const auto& value) { text << value; });
  std::string line = text.str();
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

std::string place(const std::string& file, const toml::node& node) {
  return file + ":" + std::to_string(node.source().begin.line);
}

class Loader {
 public:
  explicit Loader(LoadedConfig& loaded) : fields_(fields(loaded.config)) {
    for (const Field& field : fields_) {
      keys_.push_back(field.key);
      if (sections_.empty() || sections_.back() != section_of(field.key)) {
        sections_.push_back(section_of(field.key));
      }
      origins_.emplace_back("default");
    }
  }

  void read_file(const std::filesystem::path& path) {
    const std::string file = path.string();
    const toml::table table = toml_in(content_of_named(path, "give the TOML file of a run"), file);
    Spellings spellings;
    for (const auto& [name, node] : table) {
      const std::string section(name.str());
      if (std::find(sections_.begin(), sections_.end(), section) == sections_.end()) {
        refuse_unknown(place(file, node), section, node.is_table());
      }
      const toml::table* members = node.as_table();
      if (members == nullptr) {
        std::string message = place(file, node);
        message.append(": ").append(section).append(" is ").append(text_of(node));
        message.append("; accepted is a table, [").append(section).append("]");
        throw std::invalid_argument(message);
      }
      for (const auto& [member, value] : *members) {
        const std::string key = section + "." + std::string(member.str());
        const std::size_t index = index_of(key, place(file, value));
        expect_one_spelling(spellings, index, key, place(file, value));
        Reader(fields_[index], value, text_of(value), place(file, value)).read();
        origins_[index] = place(file, value);
      }
    }
  }

  void set(const std::string& setting) {
    const std::size_t equals = setting.find('=');
    const std::string where = "--set " + setting;
    if (equals == std::string::npos) {
      throw std::invalid_argument(where + ": accepted is key=value, as in train.steps=20");
    }
    const std::string key = setting.substr(0, equals);
    const std::size_t index = index_of(key, where);
    expect_one_spelling(set_, index, key, where);
    const Field& field = fields_[index];
    const std::string text = setting.substr(equals + 1);
    toml::table table = value_table(text);
    const bool wants_string = std::holds_alternative<std::string*>(field.value);
    const bool wants_strings = std::holds_alternative<std::vector<std::string>*>(field.value);
    const bool fits = wants_string    ? table["v"].is_string()
                      : wants_strings ? table["v"].is_string() || table["v"].is_array()
                                      : true;
    if (table.empty() || !fits) {
      table.insert_or_assign("v", text);  // a bare string
    }
    Reader(field, *table.get("v"), text.empty() ? "empty" : text, where).read();
    origins_[index] = "--set";
  }

  [[nodiscard]] std::vector<ConfigEntry> entries() const {
    std::vector<ConfigEntry> entries;
    entries.reserve(fields_.size());
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      entries.push_back(
          {.key = fields_[i].key, .value = toml_text(fields_[i]), .origin = origins_[i]});
    }
    return entries;
  }

  [[nodiscard]] std::string origin(const std::string& key) const {
    return origins_[index_of(key, key)];
  }

 private:
  // {v = text}, or empty when the text is no TOML value.
  static toml::table value_table(const std::string& text) {
    try {
      toml::table table = toml_in("v = " + text, "--set");
      return table.size() == 1 ? table : toml::table{};  // more: the text had a line of its own
    } catch (const std::invalid_argument&) {
      return {};
    }
  }

  [[nodiscard]] std::size_t index_of(const std::string& key, const std::string& where) const {
    const auto found = std::ranges::find_if(fields_, [&](const Field& field) {
      return field.key == key || (!key.empty() && field.old_key == key);
    });
    if (found == fields_.end()) {
      refuse_unknown(where, key, /*section=*/false);
    }
    return idx(found - fields_.begin());
  }

  // Of a file, or of all --set: a key may come by its old name, but not by both.
  using Spellings = std::map<std::size_t, std::string>;  // field -> key
  void expect_one_spelling(
      Spellings& spellings, std::size_t index, const std::string& key, const std::string& where) {
    const std::string& first = spellings.emplace(index, key).first->second;
    if (first != key) {
      const Field& field = fields_[index];
      throw std::invalid_argument(
          where + ": " + field.key + " is given twice: " + field.old_key +
          " is its old name; leave " + field.old_key + " out");
    }
  }

  [[noreturn]] void refuse_unknown(
      const std::string& where, const std::string& key, bool section) const {
    if (section) {
      throw std::invalid_argument(
          where + ": there is no section [" + key + "]" + did_you_mean(key, sections_) +
          "; there are: " + joined(sections_, ", "));
    }
    // A key's name is compared whole, or, without a section, with every last part of a key.
    std::string near = nearest_name(key, keys_);
    const std::string last = key.substr(key.find('.') + 1);
    for (const std::string& known : keys_) {
      if (near.empty() && known.substr(known.find('.') + 1) == last) {
        near = known;
      }
    }
    std::vector<std::string> here;
    for (const std::string& known : keys_) {
      if (section_of(known) == section_of(key)) {
        here.push_back(known);
      }
    }
    throw std::invalid_argument(
        where + ": there is no key " + key +
        (near.empty() ? std::string() : " (did you mean '" + near + "'?)") +
        (here.empty() ? "; sections are: " + joined(sections_, ", ")
                      : "; there are: " + joined(here, ", ")));
  }

  std::vector<Field> fields_;
  std::vector<std::string> keys_;
  std::vector<std::string> sections_;
  std::vector<std::string> origins_;  // [field]
  Spellings set_;
};

// Of steps and epochs one says how long a run is.
void settle_steps(RunConfig& config, const Loader& loader) {
  RunConfig::Train& train = config.train;
  if (train.epochs == 0) {
    if (train.steps == 0) {
      throw std::invalid_argument(
          "train.steps is 0 (" + loader.origin("train.steps") +
          ") and train.epochs is 0: nothing would be trained; give one of them");
    }
    return;
  }
  if (train.steps != 0 && loader.origin("train.steps") != "default") {
    throw std::invalid_argument(
        "train.epochs is " + std::to_string(train.epochs) + " (" + loader.origin("train.epochs") +
        ") and train.steps is " + std::to_string(train.steps) + " (" +
        loader.origin("train.steps") + "): a run takes one of them; set the other to 0");
  }
  train.steps = 0;
}

void expect_evaluation(const RunConfig& config) {
  const RunConfig::Data& data = config.data;
  const std::string held_out = "data.held_out is " + toml_text(data.held_out);
  if (data.held_out >= 1 && data.held_out != std::floor(data.held_out)) {
    throw std::invalid_argument(
        held_out + "; accepted is a share below 1, or a whole number of documents");
  }
  if (data.held_out > 0 && !data.eval_path.empty()) {
    throw std::invalid_argument(
        held_out +
        ", and data.eval_path is given, too: the held-out documents are those of one of "
        "them; leave the other out");
  }
  if (config.train.eval_every > 0 && data.held_out == 0 && data.eval_path.empty()) {
    throw std::invalid_argument(
        "train.eval_every is " + std::to_string(config.train.eval_every) +
        ", but nothing is held out; give data.held_out or data.eval_path");
  }
  if (!data.weights.empty() && data.weights.size() != data.path.size()) {
    throw std::invalid_argument(
        "data.weights has " + std::to_string(data.weights.size()) + " numbers for the " +
        std::to_string(data.path.size()) + " entries of data.path; give one for each");
  }
}

}  // namespace

LoadedConfig load_config(
    const std::filesystem::path& file, const std::vector<std::string>& settings) {
  LoadedConfig loaded;
  Loader loader(loaded);
  if (!file.empty()) {
    loader.read_file(file);
  }
  for (const std::string& setting : settings) {
    loader.set(setting);
  }
  settle_steps(loaded.config, loader);
  expect_evaluation(loaded.config);
  const RunConfig::Data& data = loaded.config.data;
  if (data.max_tokens != 0 && data.max_tokens < data.min_tokens) {
    throw std::invalid_argument(
        "data.max_tokens is " + std::to_string(data.max_tokens) + " (" +
        loader.origin("data.max_tokens") + "), less than data.min_tokens, " +
        std::to_string(data.min_tokens) + " (" + loader.origin("data.min_tokens") +
        "): no document has such a length; raise one or lower the other");
  }
  loaded.entries = loader.entries();
  return loaded;
}

std::map<std::string, std::string> with_current_names(
    const std::map<std::string, std::string>& configuration) {
  std::map<std::string, std::string> current = configuration;
  RunConfig defaults;
  for (const Field& field : fields(defaults)) {
    if (auto old = current.extract(field.old_key)) {
      old.key() = field.key;
      current.insert(std::move(old));
    }
    const auto entry = current.find(field.key);
    for (const Renamed& value : field.renamed) {
      if (entry != current.end() && entry->second == toml_text(value.old)) {
        entry->second = toml_text(value.now);
      }
    }
  }
  return current;
}

LoadedConfig with_absolute_paths(LoadedConfig loaded) {
  namespace fs = std::filesystem;
  const RunConfig& config = loaded.config;
  // Where it is a file, or one that will be made; a preset's name stays one.
  const auto absolute = [](const std::string& path, bool is_made) {
    std::error_code error;
    const bool is_pattern = path.find_first_of("*?[") != std::string::npos;
    const bool is_there =
        fs::exists(path, error) || fs::exists(path + ".bin", error);  // Megatron's
    return path.empty() || !(is_made || is_pattern || is_there)
               ? path
               : fs::absolute(path).lexically_normal().string();
  };
  const auto rewrite = [&](const char* key, const auto& before, const auto& after) {
    const auto entry = std::ranges::find(loaded.entries, key, &ConfigEntry::key);
    if (entry != loaded.entries.end() && after != before) {
      entry->value = toml_text(after);
    }
  };
  for (const auto& [key, path] :
       {std::pair("model.path", config.model.path),
        std::pair("lora.path", config.lora.path),
        std::pair("costs.file", config.costs.file),
        std::pair("optimizer.path", config.optimizer.path),
        std::pair("output.folder", config.output.folder)}) {
    rewrite(key, path, absolute(path, std::string_view(key) == "output.folder"));
  }
  for (const auto& [key, paths] :
       {std::pair("data.path", config.data.path),
        std::pair("data.eval_path", config.data.eval_path)}) {
    std::vector<std::string> all;
    for (const std::string& path : paths) {
      all.push_back(absolute(path, false));
    }
    rewrite(key, paths, all);
  }
  return loaded;
}

std::string to_toml(const LoadedConfig& loaded) {
  std::string text;
  std::string section;
  for (const ConfigEntry& entry : loaded.entries) {
    if (section != section_of(entry.key)) {
      text += text.empty() ? "" : "\n";
      section = section_of(entry.key);
      text += "[" + section + "]\n";
    }
    constexpr std::size_t kComment = 40;  // column of comments
    std::string line = entry.key.substr(section.size() + 1) + " = " + entry.value;
    line.append(line.size() < kComment ? kComment - line.size() : 1, ' ');
    // A file's name may hold anything; a comment ends with its line.
    std::string origin = entry.origin;
    std::replace_if(
        origin.begin(),
        origin.end(),
        [](unsigned char letter) { return letter < ' ' || letter == 127; },
        '?');
    text.append(line).append(" # ").append(origin).append("\n");
  }
  return text;
}

}  // namespace paradyse
