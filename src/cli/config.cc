// paradyse config: the keys of a run file.
#include "paradyse/plan/config.h"

#include <algorithm>
#include <cstdio>

#include "src/cli/commands.h"
#include "src/plan/base/text_match.h"
#include "src/plan/base/wrapped_text.h"

namespace paradyse::cli {
namespace {

struct ConfigOptions {
  std::vector<std::string> keys;
  bool list = false;  // what the command does anyway
  bool markdown = false;
  bool as_template = false;
};

// The keys that `names` are, or begin with as a section.  Throws std::invalid_argument.
std::vector<ConfigKey> keys_of(const std::vector<std::string>& names) {
  const std::vector<ConfigKey> all = config_keys();
  if (names.empty()) {
    return all;
  }
  std::vector<ConfigKey> found;
  for (const std::string& name : names) {
    const std::size_t before = found.size();
    std::vector<std::string> known;
    for (const ConfigKey& key : all) {
      known.push_back(key.key);
      known.push_back(key.key.substr(0, key.key.find('.')));
      if (key.key == name || key.key.starts_with(name + ".")) {
        found.push_back(key);
      }
    }
    if (found.size() == before) {
      throw std::invalid_argument(
          "there is no key or section " + name + did_you_mean(name, known) +
          "; paradyse config lists all");
    }
  }
  return found;
}

int run_config(const ConfigOptions& options, const Common& common) {
  if (options.markdown + options.as_template + (options.keys.empty() ? 0 : 1) > 1) {
    throw std::invalid_argument(
        "--markdown and --template print all keys: give only one of them, and no KEY");
  }
  if (options.markdown || options.as_template) {
    const std::string text = options.markdown ? config_reference() : config_template();
    if (common.json) {
      print_json({{"text", text}});
    } else {
      std::fputs(text.c_str(), stdout);
    }
    return kOk;
  }
  Json keys = Json::array();
  std::string text;
  for (const ConfigKey& key : keys_of(options.keys)) {
    constexpr std::size_t kWidth = 80;
    keys.push_back(
        {{"key", key.key},
         {"default", key.default_value},
         {"accepted", key.accepted},
         {"meaning", key.meaning}});
    text += text.empty() ? "" : "\n";
    text += key.key + " = " + key.default_value + "\n";
    text += wrapped_text(key.meaning, "    ", kWidth);
    text += wrapped_text("Accepted: " + key.accepted + ".", "    ", kWidth);
  }
  if (common.json) {
    print_json({{"keys", keys}});
  } else {
    std::fputs(text.c_str(), stdout);
  }
  return kOk;
}

}  // namespace

void add_config(CLI::App& app, Common& common) {
  const auto [command, options] = add_command<ConfigOptions>(
      app,
      common,
      "config",
      "List the keys of a run file: default, accepted values, meaning",
      run_config);
  command->add_option(
      "KEY", options->keys, "Only these keys or sections, as in train or train.dtype");
  command->add_flag("--list", options->list, "List the keys, which is the default");
  command->add_flag(
      "--template", options->as_template, "Print a run file with every key as a comment");
  command->add_flag("--markdown", options->markdown, "Print docs/reference/config.md");
}

}  // namespace paradyse::cli
