// All that is known of a key of a run file: its name, where it goes, what it accepts, what it is
// for.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "paradyse/plan/config.h"
#include "paradyse/plan/dtype.h"
#include "src/plan/base/renamed.h"

namespace paradyse {

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();
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

// Field::known_by of keys of language models; of others it is their family.
inline constexpr const char* kDocuments = "documents";

struct Field {
  std::string key;   // "train.steps"
  std::string help;  // a sentence or two
  std::variant<
      std::string*,
      std::vector<std::string>*,
      std::vector<double>*,
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
  std::string old_key = {};                // accepted, too
  std::vector<Renamed> renamed = {};       // values whose old name is accepted, too
  std::string known_by = {};  // by these models alone; to others it does nothing, which is told
  bool fixed = false;         // it makes a run the run it is: resumed, it cannot change
};

// In the order of the struct; they write into `config`.
std::vector<Field> fields(RunConfig& config);

std::string section_of(const std::string& key);

// Keys that these models alone know.
std::vector<std::string> keys_known_by(const std::string& models);
// Keys that say something other than their default and that only other models know; and which do.
std::vector<std::pair<std::string, std::string>> keys_of_others(
    const RunConfig& config, const std::string& models);
// "language models", of such a Field::known_by; of that of all models "".
std::string models_text(const std::string& known_by);

// The keys that a resumed run may change, in short: "data.path, parallel, train (but not dtype)".
std::string changeable_keys();

// What a field takes, as in "a whole number from 1".
std::string accepted_text(const Field& field);

// A value as TOML.
std::string toml_text(const Field& field);
std::string toml_text(const std::string& value);
std::string toml_text(const std::vector<std::string>& values);
std::string toml_text(double value);

}  // namespace paradyse
