// What documents say of the keys of a run file.
#include "paradyse/plan/config.h"
#include "src/plan/base/wrapped_text.h"
#include "src/plan/config/fields.h"

namespace paradyse {

namespace {

// Calls `section` before the first key of each.
template <typename OnSection, typename OnKey>
void for_each_key(const OnSection& section, const OnKey& each) {
  std::string last;
  for (const ConfigKey& key : config_keys()) {
    const std::string here = section_of(key.key);
    if (here != last) {
      section(here);
      last = here;
    }
    each(key, key.key.substr(here.size() + 1));
  }
}

}  // namespace

std::vector<ConfigKey> config_keys() {
  RunConfig defaults;
  std::vector<ConfigKey> keys;
  for (const Field& field : fields(defaults)) {
    keys.push_back(
        {.key = field.key,
         .default_value = toml_text(field),
         .accepted = accepted_text(field),
         .meaning = field.help,
         .models = models_text(field.known_by),
         .fixed = field.fixed});
  }
  return keys;
}

std::string config_reference() {
  std::string text =
      "# Keys of a run file\n\n"
      "<!-- Made by `paradyse config --markdown`; a test compares. -->\n\n";
  text += wrapped_text(
      "A run file is TOML with a table for each section. Every key has a default, so a file needs "
      "only the keys that differ. `--set SECTION.KEY=VALUE` on the command line takes precedence "
      "over the file. `paradyse config` prints this list, `paradyse config --template` a run file "
      "with every key, and `paradyse train -c FILE --print-config` every value of a run and where "
      "it came from.",
      "",
      100);
  for_each_key(
      [&](const std::string& section) { text += "\n## `[" + section + "]`\n"; },
      [&](const ConfigKey& key, const std::string& /*name*/) {
        text += "\n### `" + key.key + "`\n\n";
        text += wrapped_text(
            "Default `" + key.default_value + "`; accepted: " + key.accepted + "." +
                (key.models.empty() ? "" : " Only for " + key.models + ".") +
                (key.fixed ? " A resumed run cannot change it." : ""),
            "",
            100);
        text += "\n" + wrapped_text(key.meaning, "", 100);
      });
  return text;
}

std::string config_template() {
  std::string text =
      "# A run file with all keys and their defaults.  Uncomment a key to set it.\n"
      "# Run it with: paradyse train -c FILE\n";
  for_each_key(
      [&](const std::string& section) { text += "\n[" + section + "]\n"; },
      [&](const ConfigKey& key, const std::string& name) {
        text += "\n" + wrapped_text(key.meaning, "# ", 80);
        text += wrapped_text("Accepted: " + key.accepted + ".", "# ", 80);
        text += "# " + name + " = " + key.default_value + "\n";
      });
  return text;
}

}  // namespace paradyse
