// The configuration of a run.  All that is known of a key stands in one line of fields(): its name,
// where it goes, and what it accepts.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>
#include <toml++/toml.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/config.h"
#include "paradyse/plan/dtype.h"
#include "paradyse/plan/index.h"
#include "paradyse/plan/strategy.h"
#include "src/plan/base/text_match.h"

namespace paradyse {

namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMostRanks = 1024;  // each is a thread with its own memory

// The numbers from `low` to `high`; a bound that is `open` does not belong to them.
struct Range {
  double low = -kNoLimit;
  double high = kNoLimit;
  bool low_open = false;
  bool high_open = false;

  [[nodiscard]] bool contains(double value) const {
    return std::isfinite(value) && (low_open ? value > low : value >= low) &&
           (high_open ? value < high : value <= high);
  }
};

struct Field {
  std::string key;
  std::variant<
      std::string*,
      std::vector<std::string>*,
      Dtype*,
      std::int64_t*,
      std::uint64_t*,
      double*,
      bool*>
      value;
  Range range = {};                        // of numbers
  std::vector<std::string> accepted = {};  // strings; none: any
  bool amount = false;                     // a string that may stand without quotes when a number
  bool id = false;                         // the same: of a token, auto or none
};

std::vector<std::string> names_of_strategies(std::vector<std::string> names) {
  for (const Strategy& strategy : strategies("attention")) {
    names.push_back(strategy.name);
  }
  return names;
}

template <typename Rows>
std::vector<std::string> names_of(const Rows& table) {
  std::vector<std::string> names;
  for (const auto& row : table) {
    names.emplace_back(row.name);
  }
  return names;
}

std::vector<std::string> names_of_levels() {
  std::vector<std::string> names = recompute_names();
  names.insert(names.begin(), "auto");
  return names;
}

// In the order of the struct.
std::vector<Field> fields(RunConfig& c) {
  const Range from_zero{.low = 0};
  const Range from_one{.low = 1};
  const Range share{.low = 0, .high = 1};
  const Range own_or_share{.low = -1, .high = 1, .high_open = true};
  const Range beta{.low = 0, .high = 1, .high_open = true};
  std::vector<Field> all = {
      {.key = "model.path", .value = &c.model.path},
      {.key = "model.random_weights", .value = &c.model.random_weights},
      {.key = "model.seed", .value = &c.model.seed, .range = from_zero},
      {.key = "model.dropout", .value = &c.model.dropout, .range = own_or_share},
      {.key = "model.attention_dropout",
       .value = &c.model.attention_dropout,
       .range = own_or_share},
      {.key = "data.path", .value = &c.data.path},
      {.key = "data.eval_path", .value = &c.data.eval_path},
      {.key = "data.min_tokens", .value = &c.data.min_tokens, .range = from_zero},
      {.key = "data.max_tokens", .value = &c.data.max_tokens, .range = from_zero},
      {.key = "data.too_long",
       .value = &c.data.too_long,
       .accepted = {"cut", "skip", "refuse", "split"}},
      {.key = "data.bytes", .value = &c.data.bytes},
      {.key = "data.end_id", .value = &c.data.end_id, .id = true},
      {.key = "data.order",
       .value = &c.data.order,
       .accepted = {"shuffled", "sorted", "curriculum"}},
      {.key = "data.curriculum_share", .value = &c.data.curriculum_share, .range = share},
      {.key = "data.seed", .value = &c.data.seed, .range = from_zero},
      {.key = "parallel.ranks",
       .value = &c.parallel.ranks,
       .range = {.low = 1, .high = kMostRanks}},
      {.key = "parallel.memory_per_rank", .value = &c.parallel.memory_per_rank, .amount = true},
      {.key = "parallel.attention",
       .value = &c.parallel.attention,
       .accepted = names_of_strategies({"auto"})},
      {.key = "parallel.mlp",
       .value = &c.parallel.mlp,
       .accepted = names_of_strategies({"auto", "hold", "gather", "pass"})},
      {.key = "parallel.recompute", .value = &c.parallel.recompute, .accepted = names_of_levels()},
      {.key = "parallel.planner",
       .value = &c.parallel.planner,
       .accepted = names_of(layer_planners())},
      {.key = "parallel.batch_planner",
       .value = &c.parallel.batch_planner,
       .accepted = names_of(batch_planners())},
      {.key = "parallel.planning_seconds",
       .value = &c.parallel.planning_seconds,
       .range = {.low = 0, .high = 1e6}},
      {.key = "parallel.offload", .value = &c.parallel.offload},
      {.key = "parallel.deadline_seconds",
       .value = &c.parallel.deadline_seconds,
       .range = {.low = 0, .high = 1e6, .low_open = true}},
      {.key = "parallel.backend",
       .value = &c.parallel.backend,
       .accepted = {"auto", "local", "gloo", "nccl"}},
      {.key = "parallel.device", .value = &c.parallel.device, .accepted = {"cpu", "cuda"}},
      {.key = "parallel.rendezvous", .value = &c.parallel.rendezvous},
      {.key = "parallel.interface", .value = &c.parallel.interface},
      {.key = "costs.file", .value = &c.costs.file},
      {.key = "costs.correct", .value = &c.costs.correct},
      {.key = "costs.profile_seconds",
       .value = &c.costs.profile_seconds,
       .range = {.low = 0, .high = 1e6, .low_open = true}},
      {.key = "train.steps", .value = &c.train.steps, .range = from_one},
      {.key = "train.tokens_per_step", .value = &c.train.tokens_per_step, .range = from_one},
      {.key = "train.dtype", .value = &c.train.dtype, .accepted = dtype_names()},
      {.key = "train.metrics_groups", .value = &c.train.metrics_groups},
      {.key = "optimizer.lr", .value = &c.optimizer.lr, .range = from_zero},
      {.key = "optimizer.beta1", .value = &c.optimizer.beta1, .range = beta},
      {.key = "optimizer.beta2", .value = &c.optimizer.beta2, .range = beta},
      {.key = "optimizer.eps", .value = &c.optimizer.eps, .range = {.low = 0, .low_open = true}},
      {.key = "optimizer.weight_decay", .value = &c.optimizer.weight_decay, .range = from_zero},
      {.key = "optimizer.clip_norm", .value = &c.optimizer.clip_norm, .range = from_zero},
      {.key = "optimizer.warmup_steps", .value = &c.optimizer.warmup_steps, .range = from_zero},
      {.key = "optimizer.min_lr_ratio", .value = &c.optimizer.min_lr_ratio, .range = share},
      {.key = "optimizer.offload", .value = &c.optimizer.offload},
      {.key = "output.folder", .value = &c.output.folder},
      {.key = "output.name", .value = &c.output.name},
      {.key = "output.trace", .value = &c.output.trace},
      {.key = "output.model", .value = &c.output.model},
      {.key = "output.clips", .value = &c.output.clips, .range = from_zero},
      {.key = "output.sampling_steps", .value = &c.output.sampling_steps, .range = from_one},
      {.key = "checkpoint.keep", .value = &c.checkpoint.keep, .range = from_zero},
      {.key = "checkpoint.every", .value = &c.checkpoint.every, .range = from_zero},
      {.key = "checkpoint.minutes",
       .value = &c.checkpoint.minutes,
       .range = {.low = 0, .high = 1e6}},
  };
  // Beside the strategies that have them.
  auto place = std::ranges::find(all, "parallel.offload", &Field::key);
  for (const Option& option : all_options()) {
    place = all.insert(
        place + 1,
        {.key = std::string("parallel.") + option.name,
         .value = &c.parallel.options[option.name],
         .range = from_zero});
  }
  return all;
}

std::string section_of(const std::string& key) { return key.substr(0, key.find('.')); }

std::string list_of(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) {
    list += list.empty() ? "" : ", ";
    list += name;
  }
  return list;
}

// --- values as TOML ------------------------------------------------------------------------------

std::string shortest(double value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

std::string toml_text(const std::string& value) {
  std::ostringstream text;
  text << toml::value<std::string>(value);
  return text.str();
}

// One string stands for a list of it, none for an empty one.
std::string toml_text(const std::vector<std::string>& values) {
  if (values.size() < 2) {
    return toml_text(values.empty() ? std::string() : values.front());
  }
  std::string text;
  for (const std::string& value : values) {
    text += (text.empty() ? "[" : ", ") + toml_text(value);
  }
  return text + "]";
}

std::string toml_text(Dtype value) { return toml_text(std::string(to_string(value))); }

std::string toml_text(double value) {
  std::string text = shortest(value);
  if (text.find_first_of(".e") == std::string::npos) {
    text += ".0";  // or TOML takes it for an integer
  }
  return text;
}

std::string toml_text(std::int64_t value) { return std::to_string(value); }
std::string toml_text(std::uint64_t value) { return std::to_string(value); }
std::string toml_text(bool value) { return value ? "true" : "false"; }

std::string toml_text(const Field& field) {
  return std::visit([](const auto* value) { return toml_text(*value); }, field.value);
}

// --- reading -------------------------------------------------------------------------------------

std::string range_text(const Range& range) {
  std::string text;
  if (std::isfinite(range.low)) {
    text += (range.low_open ? " above " : " from ") + shortest(range.low);
  }
  if (std::isfinite(range.high)) {
    text += (range.high_open ? " and below " : " to ") + shortest(range.high);
  }
  return text;
}

std::string accepted_text(const Field& field) {
  if (!field.accepted.empty()) {
    return "one of " + list_of(field.accepted);
  }
  if (field.amount) {
    return "an amount of memory, as in \"512MiB\", or 0";
  }
  if (field.id) {
    return "auto, none, or an id from 0";
  }
  if (std::holds_alternative<std::string*>(field.value)) {
    return "a string";
  }
  if (std::holds_alternative<std::vector<std::string>*>(field.value)) {
    return "a string, or a list of strings";
  }
  if (std::holds_alternative<bool*>(field.value)) {
    return "true or false";
  }
  if (std::holds_alternative<double*>(field.value)) {
    return "a number" + range_text(field.range);
  }
  return "a whole number" + range_text(field.range);
}

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

  void put(std::string& into) const {
    if (const auto* string = node_.as_string()) {
      into = string->get();
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
      into.push_back(string->get());
    }
  }

  void put(Dtype& into) const {
    std::string name;
    put(name);
    into = dtype_named(name);
  }

  template <typename Integer>
  void put(Integer& into) const {
    const auto* integer = node_.as_integer();
    if (integer == nullptr || !field_.range.contains(static_cast<double>(integer->get()))) {
      refuse();
    }
    into = static_cast<Integer>(integer->get());
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
    std::ifstream stream(path, std::ios::binary);
    std::ostringstream text;
    if (stream.peek() != std::ifstream::traits_type::eof()) {
      text << stream.rdbuf();
    }
    if (!stream.is_open() || stream.bad() || std::filesystem::is_directory(path)) {
      throw std::invalid_argument(file + ": cannot be read; give the TOML file of a run");
    }
    const toml::table table = parsed(text.str(), file);
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
    const std::size_t index = index_of(setting.substr(0, equals), where);
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
  static toml::table parsed(const std::string& text, const std::string& file) {
    try {
      return toml::parse(text, file);
    } catch (const toml::parse_error& error) {
      throw std::invalid_argument(
          file + ":" + std::to_string(error.source().begin.line) +
          ": is no TOML: " + std::string(error.description()));
    }
  }

  // {v = text}, or empty when the text is no TOML value.
  static toml::table value_table(const std::string& text) {
    try {
      toml::table table = toml::parse("v = " + text);
      return table.size() == 1 ? table : toml::table{};  // more: the text had a line of its own
    } catch (const toml::parse_error&) {
      return {};
    }
  }

  [[nodiscard]] std::size_t index_of(const std::string& key, const std::string& where) const {
    const auto found = std::find(keys_.begin(), keys_.end(), key);
    if (found == keys_.end()) {
      refuse_unknown(where, key, /*section=*/false);
    }
    return idx(found - keys_.begin());
  }

  [[noreturn]] void refuse_unknown(
      const std::string& where, const std::string& key, bool section) const {
    if (section) {
      throw std::invalid_argument(
          where + ": there is no section [" + key + "]" + did_you_mean(key, sections_) +
          "; there are: " + list_of(sections_));
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
        (here.empty() ? "; sections are: " + list_of(sections_) : "; there are: " + list_of(here)));
  }

  std::vector<Field> fields_;
  std::vector<std::string> keys_;
  std::vector<std::string> sections_;
  std::vector<std::string> origins_;  // [field]
};

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

LoadedConfig with_absolute_paths(LoadedConfig loaded) {
  namespace fs = std::filesystem;
  const RunConfig& config = loaded.config;
  // Where it is a file, or one that will be made; a preset's name stays one.
  const auto absolute = [](const std::string& path, bool is_made) {
    std::error_code error;
    const bool is_pattern = path.find_first_of("*?[") != std::string::npos;
    return path.empty() || !(is_made || is_pattern || fs::exists(path, error))
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
        std::pair("costs.file", config.costs.file),
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
