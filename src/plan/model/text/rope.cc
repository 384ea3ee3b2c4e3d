// Rotary embeddings stretched over more positions: their configuration and their frequencies.
//
// Formulas as in transformers' modeling_rope_utils.py: linear (Chen et al. 2023), llama3 (Dubey et
// al. 2024), yarn (Peng et al. 2023).
#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "src/plan/model/text/text_families.h"

namespace paradyse {
namespace {

using nlohmann::json;
using Type = RopeScaling::Type;

constexpr const char* kPart = "partial_rotary_factor";

// Yarn's factor of cosines and sines where the file does not say one.
double yarn_attention_factor(const Keys& keys, double factor) {
  const auto grown = [factor](double scale) {
    return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
  };
  if (keys.find("mscale") != nullptr && keys.find("mscale_all_dim") != nullptr) {
    return grown(keys.positive("mscale", 1)) / grown(keys.positive("mscale_all_dim", 1));
  }
  return grown(1);
}

// `positions`: what the model has, 0: any number.
RopeScaling scaling_of(
    const Keys& keys, const std::function<std::int64_t()>& positions, const RopeKeys& names) {
  const std::vector<std::string> types =
      names.stretched ? std::vector<std::string>{"default", "linear", "llama3", "yarn"}
                      : std::vector<std::string>{"default"};
  const std::string type = keys.name("rope_type", keys.name("type", "default", types), types);
  std::vector<std::string> known = {"rope_type", "type", "rope_theta", kPart};
  RopeScaling scaling;
  if (names.part == nullptr) {
    keys.expect(kPart, 1.0, "rotating a part of a head is not implemented");
  }
  if (type == "default") {
    keys.refuse_unknown(known);
    return scaling;
  }
  known.emplace_back("factor");
  if (type == "linear") {
    scaling.type = Type::linear;
  } else {
    known.emplace_back("original_max_position_embeddings");
    const auto original = keys.size_or_absent("original_max_position_embeddings");
    scaling.original_positions = original ? *original : positions();
    if (scaling.original_positions == 0) {
      keys.refuse(
          "original_max_position_embeddings", "say how long the model's documents were before");
    }
  }
  const bool said = keys.find("factor") != nullptr;
  const std::int64_t stretched = !said && type == "yarn" ? positions() : 0;
  if (!said && stretched == 0) {
    keys.refuse("factor", "accepted is a positive number");
  }
  scaling.factor =
      said ? keys.positive("factor", 1.0)
           : static_cast<double>(stretched) / static_cast<double>(scaling.original_positions);
  if (type == "llama3") {
    scaling.type = Type::llama3;
    known.insert(known.end(), {"low_freq_factor", "high_freq_factor"});
    for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
      if (keys.find(key) == nullptr) {
        keys.refuse(key, "accepted is a positive number");
      }
    }
    scaling.low_freq_factor = keys.positive("low_freq_factor", 1.0);
    scaling.high_freq_factor = keys.positive("high_freq_factor", 4.0);
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      keys.refuse("high_freq_factor", "accepted is a number above low_freq_factor");
    }
  } else if (type == "yarn") {
    scaling.type = Type::yarn;
    known.insert(
        known.end(),
        {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"});
    scaling.attention_factor =
        keys.positive("attention_factor", yarn_attention_factor(keys, scaling.factor));
    scaling.beta_fast = keys.positive("beta_fast", scaling.beta_fast);
    scaling.beta_slow = keys.positive("beta_slow", scaling.beta_slow);
    scaling.truncate = keys.flag("truncate", scaling.truncate);
  }
  keys.refuse_unknown(known);
  return scaling;
}

// Columns of a head, and their pairs; rounded down, as transformers does.
void read_turned(const Keys& keys, const std::string& key, double part, TextShape& shape) {
  const auto columns = static_cast<std::int64_t>(static_cast<double>(shape.head_dim) * part);
  if (part > 1 || columns < 2 || columns % 2 != 0 || shape.head_dim % 2 != 0) {
    keys.refuse(
        key,
        "accepted is a part of head_dim = " + std::to_string(shape.head_dim) +
            ", which is even, that makes an even number of columns: rotary embeddings rotate "
            "pairs");
  }
  shape.turned = columns == shape.head_dim ? 0 : columns;
}

}  // namespace

double turned_part(const TextShape& shape) {
  const auto D = static_cast<double>(shape.head_dim);
  const double turned = shape.turned == 0 ? D : static_cast<double>(shape.turned);
  const double part = turned / D;
  return D * part < turned ? std::nextafter(part, 1.0) : part;
}

// transformers 4 says rope_theta and rope_scaling at the top, 5 both in rope_parameters; a file
// that says a thing twice must agree with itself.
void read_rope(const Keys& keys, TextShape& shape, const RopeKeys& names) {
  shape.rope_theta = keys.positive(names.theta, shape.rope_theta);
  double part = names.part == nullptr ? 1.0 : keys.positive(names.part, names.absent_part);
  bool part_said = names.part == nullptr;
  const char* said = nullptr;
  const double top_theta = shape.rope_theta;
  const double top_part = part;
  const auto positions = [&keys, &shape] {
    const bool absent = !keys.says("max_position_embeddings");
    return absent && keys.published("max_position_embeddings") > 0
               ? keys.size("max_position_embeddings")
               : shape.max_positions;
  };
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* parameters = keys.find(key);
    if (parameters == nullptr || *parameters == json::object()) {
      continue;
    }
    if (!parameters->is_object()) {
      keys.refuse(key, "accepted is an object with rope_theta, rope_type and what that type needs");
    }
    const Keys inner(*parameters, keys.where() + ": " + key);
    const double theta = inner.positive("rope_theta", top_theta);
    if (keys.find(names.theta) != nullptr && theta != top_theta) {
      keys.refuse(
          names.theta,
          std::string("but ") + key + " says " + json(theta).dump() +
              ": remove the one that is wrong");
    }
    const auto differs = [&](const char* name, double before) {
      inner.refuse(
          name,
          std::string("but with ") + said + " it is " + json(before).dump() +
              ": remove the object that is wrong");
    };
    if (said != nullptr && theta != shape.rope_theta) {
      differs("rope_theta", shape.rope_theta);
    }
    shape.rope_theta = theta;
    const RopeScaling scaling = scaling_of(inner, positions, names);
    const double said_part = names.part == nullptr ? part : inner.positive(kPart, top_part);
    if (said != nullptr && said_part != part) {
      differs(kPart, part);
    }
    if (names.part != nullptr && inner.find(kPart) != nullptr) {
      if (keys.find(names.part) != nullptr && said_part != top_part) {
        keys.refuse(
            names.part,
            std::string("but ") + key + " says " + json(said_part).dump() +
                ": remove the one that is wrong");
      }
      part = said_part;
      part_said = true;
      read_turned(inner, kPart, part, shape);
    }
    if (said != nullptr && scaling != shape.rope_scaling) {
      keys.refuse(key, std::string("but ") + said + " differs: remove the one that is wrong");
    }
    shape.rope_scaling = scaling;
    said = key;
  }
  if (!part_said) {
    read_turned(keys, names.part, part, shape);
  }
  const auto expect_same = [&keys](const char* other, const char* name, double value) {
    if (other != nullptr && keys.positive(other, value) != value) {
      keys.refuse(
          other,
          std::string("but ") + name + " or rope_parameters, which transformers reads, make it " +
              json(value).dump() + ": correct the one that is wrong, or remove " + other);
    }
  };
  expect_same(names.also_theta, names.theta, shape.rope_theta);
  expect_same(names.also_part, names.part, part);
}

// At the top, as transformers 4 writes it: version 5 reads it there too, but version 4 would
// silently ignore rope_parameters.
void write_rope(const TextShape& shape, json& config) {
  config["rope_theta"] = shape.rope_theta;
  const RopeScaling& scaling = shape.rope_scaling;
  json& written = config["rope_scaling"];
  switch (scaling.type) {
    case Type::none:
      written = nullptr;
      return;
    case Type::linear:
      written = {{"rope_type", "linear"}, {"factor", scaling.factor}};
      return;
    case Type::llama3:
      written = {
          {"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"original_max_position_embeddings", scaling.original_positions},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor}};
      return;
    case Type::yarn:
      written = {
          {"rope_type", "yarn"},
          {"factor", scaling.factor},
          {"original_max_position_embeddings", scaling.original_positions},
          {"attention_factor", scaling.attention_factor},
          {"beta_fast", scaling.beta_fast},
          {"beta_slow", scaling.beta_slow},
          {"truncate", scaling.truncate}};
      return;
  }
}

std::optional<Rope> rope_of(const TextShape& shape, std::int64_t layer) {
  if (shape.window_rope_theta > 0 && shape.window_of(layer) > 0) {
    return Rope{.theta = shape.window_rope_theta, .turned = shape.turned};
  }
  return shape.learned_positions ? std::nullopt
                                 : std::optional<Rope>(
                                       {.theta = shape.rope_theta,
                                        .scaling = shape.rope_scaling,
                                        .turned = shape.turned});
}

std::vector<double> rope_frequencies(const Rope& rope, std::int64_t head_dim) {
  const RopeScaling& scaling = rope.scaling;
  const std::int64_t turned = rope.turned == 0 ? head_dim : rope.turned;
  const auto D = static_cast<double>(turned);
  const double two_pi = 2 * std::numbers::pi;
  const auto original = static_cast<double>(scaling.original_positions);
  // yarn: the pair that turns so often over the original positions
  const auto pair_turning = [&](double turns) {
    return D * std::log(original / (turns * two_pi)) / (2 * std::log(rope.theta));
  };
  double low = 0;
  double high = 0;
  if (scaling.type == Type::yarn) {
    low = pair_turning(scaling.beta_fast);
    high = pair_turning(scaling.beta_slow);
    if (scaling.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, D - 1);
    high += low == high ? 0.001 : 0.0;
  }
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < turned / 2; ++i) {
    const double plain = std::pow(rope.theta, -2.0 * static_cast<double>(i) / D);
    const double stretched = plain / scaling.factor;
    double share = 0;  // of the plain frequency
    switch (scaling.type) {
      case Type::none:
        share = 1;
        break;
      case Type::linear:
        break;
      case Type::llama3:  // fast pairs stay, slow ones are stretched
        share = std::clamp(
            (original * plain / two_pi - scaling.low_freq_factor) /
                (scaling.high_freq_factor - scaling.low_freq_factor),
            0.0,
            1.0);
        break;
      case Type::yarn:
        share = 1 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        break;
    }
    frequencies.push_back(share == 1 ? plain : (1 - share) * stretched + share * plain);
  }
  frequencies.resize(static_cast<std::size_t>(head_dim / 2));
  return frequencies;
}

}  // namespace paradyse
