// Low-rank adapters as vectors of the parts whose products they join (Matrix::Adapter).
//
// Words.  A *module* is a tensor of the model that a product reads, by its name below a layer
// without ".weight"; some models store several matrices as one.  Its *inputs* and *outputs* are
// those of the product.
#include "paradyse/plan/lora.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/model.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/sha256.h"
#include "src/plan/base/text_match.h"
#include "src/plan/model/text/config_keys.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/model/text/weight_names.h"

namespace paradyse {
namespace {

using nlohmann::json;

constexpr const char* kAllLinear = "all-linear";

std::string module_of(const Matrix& matrix) {
  return matrix.stored_as.substr(0, matrix.stored_as.rfind(".weight"));
}

// As PEFT matches names: the whole, or the last of it.
bool is_called(const std::string& name, const std::string& target) {
  return name == target || name.ends_with("." + target);
}

// Embeddings and heads are looked up and multiplied by in tiles of the vocabulary.
bool takes_adapters(const Part& part) { return part.kind != "embedding" && part.kind != "head"; }

// Elements of B where those are that rows of the stored tensor come in another order than ours.
std::vector<Interval> in_order(const std::vector<Interval>& rows, std::int64_t columns) {
  std::vector<Interval> elements;
  elements.reserve(rows.size());
  for (const Interval run : rows) {
    elements.push_back({run.begin * columns, run.end * columns});
  }
  return elements;
}

// Of the matrices from `first` to `last`, which one tensor stores.
void add_adapter(
    PartWeights& part, std::size_t first, std::size_t last, bool output, const Lora& lora) {
  const Matrix& begin = part.matrices[first];
  const std::string module = module_of(begin);
  const std::int64_t r = lora.rank;
  Piece stored;
  std::int64_t rows = 0;
  for (std::size_t m = first; m < last; ++m) {
    Matrix& matrix = part.matrices[m];
    matrix.adapter = {
        .a = static_cast<int>(part.vectors.size()),
        .b = static_cast<int>(part.vectors.size()) + 1,
        .first = rows,
        .output = output,
        .scale = lora.scale()};
    for (const Interval run : matrix.stored({0, matrix.rows})) {
      append(stored, run);
    }
    rows += matrix.rows;
  }
  if (output && (last - first != 1 || stored.size() != 1)) {
    throw std::logic_error("with_lora: inputs of " + module + " are stored in another order");
  }
  const std::int64_t inputs = output ? rows : begin.cols;
  const std::int64_t outputs = output ? begin.cols : rows;
  // As PEFT begins: A uniform, as far from zero as 1 / sqrt(inputs), which Kaiming's with a =
  // sqrt(5) is (He et al. 2015); B zero.
  part.vectors.push_back(
      {.role = Role::adapter_a,
       .name = module + ".lora_A.weight",
       .size = r * inputs,
       .deviation = 1 / std::sqrt(3.0 * static_cast<double>(inputs)),
       .begin = Begin::uniform,
       .stored_rows = r,
       .columns = inputs});
  part.vectors.push_back(
      {.role = Role::adapter_b,
       .name = module + ".lora_B.weight",
       .size = outputs * r,
       .stored_rows = outputs,
       .columns = r});
  if (!output && stored.size() != 1) {
    part.vectors.back().stored_at = in_order(stored, r);
  }
}

using Modules = std::set<std::string>;  // below a layer

PartWeights adapted(PartWeights part, const Modules& targets, bool input_first, const Lora& lora) {
  part.frozen = true;
  Modules modules;
  for (std::size_t m = 0, end = 0; m < part.matrices.size(); m = end) {
    const Matrix& matrix = part.matrices[m];
    for (end = m; end < part.matrices.size() && part.matrices[end].stored_as == matrix.stored_as;) {
      ++end;
    }
    const std::string module = module_of(matrix);
    if (targets.contains(module)) {
      modules.insert(module);
      add_adapter(part, m, end, matrix.transposed != input_first, lora);
    }
  }
  for (Vector& vector : part.vectors) {
    const std::size_t bias = vector.name.rfind(".bias");
    const bool trained = lora.bias == Lora::Bias::all
                             ? vector.name.find("bias") != std::string::npos
                             : lora.bias == Lora::Bias::lora_only && bias != std::string::npos &&
                                   modules.contains(vector.name.substr(0, bias));
    vector.frozen = !vector.of_adapter() && !trained;
  }
  return part;
}

// Of each module that can have an adapter its names in all layers that have it.
std::map<std::string, std::vector<std::string>> modules_of(const Model& model) {
  std::map<std::string, std::vector<std::string>> found;
  for (const ModelPart& one : model.parts) {
    if (!takes_adapters(*one.part)) {
      continue;
    }
    const PartWeights part = one.part->weights(1);
    Modules of_part;
    for (const Matrix& matrix : part.matrices) {
      of_part.insert(module_of(matrix));
    }
    for (const std::string& module : of_part) {
      found[module].push_back(layer_prefix(part, one.layer) + module);
    }
  }
  return found;
}

// The modules that the targets name.
Modules resolved(const Model& model, const Lora& lora) {
  const auto modules = modules_of(model);
  std::vector<std::string> known;
  known.reserve(modules.size());
  for (const auto& [module, names] : modules) {
    known.push_back(module);
  }
  const std::string there =
      fmt::format("there are {}, or all of them as {}", fmt::join(known, ", "), kAllLinear);
  if (lora.targets.empty()) {
    throw std::invalid_argument(
        "target_modules is empty: no weight would have an adapter; " + there);
  }
  std::map<std::string, std::size_t> layers;  // in which a module is named
  for (const auto& [module, names] : modules) {
    for (const std::string& name : names) {
      layers[module] += std::ranges::any_of(lora.targets, [&](const std::string& target) {
        return target == kAllLinear || is_called(name, target);
      });
    }
  }
  for (const std::string& target : lora.targets) {
    const bool found =
        target == kAllLinear || std::ranges::any_of(modules, [&](const auto& module) {
          return std::ranges::any_of(
              module.second, [&](const std::string& name) { return is_called(name, target); });
        });
    if (!found) {
      throw std::invalid_argument(fmt::format(
          "target_modules has '{}'{}, which no linear layer of the model is called; {} (adapters "
          "of embeddings and of the head are not implemented, nor are patterns)",
          target,
          did_you_mean(target, known),
          there));
    }
  }
  Modules targets;
  for (const auto& [module, count] : layers) {
    if (count > 0 && count < modules.at(module).size()) {
      throw std::invalid_argument(fmt::format(
          "target_modules names {} in {} of its {} layers: adapters in some layers alone are not "
          "implemented; name it without a layer",
          module,
          count,
          modules.at(module).size()));
    }
    if (count > 0) {
      targets.insert(module);
    }
  }
  return targets;
}

json settings_of(const Lora& lora, const Modules& modules) {
  return {
      {"r", lora.rank},
      {"lora_alpha", lora.alpha},
      {"target_modules", modules},
      {"use_rslora", lora.rslora},
      {"bias", to_string(lora.bias)}};
}

// `input_first`: as the model stores its matrices (WeightNames).
Model with_modules(const Model& model, const Lora& lora, const Modules& modules, bool input_first) {
  Model made = model;
  made.lora = lora;
  made.sha256 = sha256_hex(model.sha256 + " with LoRA " + settings_of(lora, modules).dump());
  made.of_sizes = [of = model.of_sizes, lora, modules, input_first](const OtherSizes& sizes) {
    return with_modules(of(sizes), lora, modules, input_first);
  };
  std::map<const Part*, std::shared_ptr<const Part>> parts;  // layers are alike
  for (ModelPart& one : made.parts) {
    std::shared_ptr<const Part>& part = parts[one.part.get()];
    if (part == nullptr) {
      Part of = *one.part;
      of.weights = [base = of.weights,
                    targets = takes_adapters(of) ? modules : Modules(),
                    input_first,
                    lora](int domain) { return adapted(base(domain), targets, input_first, lora); };
      part = std::make_shared<const Part>(std::move(of));
    }
    one.part = part;
  }
  return made;
}

}  // namespace

double Lora::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
}

std::string to_string(Lora::Bias bias) {
  return bias == Lora::Bias::all ? "all" : bias == Lora::Bias::lora_only ? "lora_only" : "none";
}

Lora::Bias lora_bias(const std::string& name) {
  for (const Lora::Bias bias : {Lora::Bias::none, Lora::Bias::all, Lora::Bias::lora_only}) {
    if (name == to_string(bias)) {
      return bias;
    }
  }
  throw std::invalid_argument("bias is '" + name + "'; accepted is none, all or lora_only");
}

Model with_lora(const Model& model, const Lora& lora) {
  if (model.family != "text") {
    throw std::invalid_argument(
        "LoRA is for language models; this model is of type " + model.family +
        ": train all of its weights");
  }
  if (model.lora) {
    throw std::invalid_argument("the model has LoRA adapters already: give its base model");
  }
  if (lora.rank < 1 || !std::isfinite(lora.alpha)) {
    throw std::invalid_argument(fmt::format(
        "r is {} and lora_alpha {}; accepted is a whole number from 1, and a number",
        lora.rank,
        lora.alpha));
  }
  const bool input_first = weight_names(text_shape(model)).input_first;
  return with_modules(model, lora, resolved(model, lora), input_first);
}

namespace {

// What says nothing of the mathematics, whatever its value.
constexpr const char* kDescriptions[] = {
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "parent_library",
    "peft_version",
    "revision",
    "task_type",
    "fan_in_fan_out",       // how the base model stores its weights, which it says itself
    "ensure_weight_tying",  // of layers that are trained whole, which are refused
    "megatron_core",        // of megatron_config, which is refused
    "qalora_group_size",    // of use_qalora, which is refused
    "loftq_config",         // how weights began
    "eva_config",
    "corda_config",
    "runtime_config"};

std::vector<std::string> targets_in(const Keys& keys, const json& config) {
  const json* said = keys.find("target_modules");
  if (said == nullptr) {
    keys.refuse("target_modules", "accepted is a list of names of modules, or \"all-linear\"");
  }
  if (*said == kAllLinear) {
    return {kAllLinear};
  }
  const bool list = said->is_array() && !said->empty() &&
                    std::ranges::all_of(*said, [](const json& one) { return one.is_string(); });
  if (!list) {
    keys.refuse(
        "target_modules",
        "accepted is a list of names of modules, or \"all-linear\": patterns are not implemented");
  }
  return config.at("target_modules").get<std::vector<std::string>>();
}

// Of a key that is not read.  A number is a layer, a text a pattern, and means something also where
// it is 0 or "none".
bool says_nothing(const json& value) {
  const auto* const text = value.get_ptr<const json::string_t*>();
  return text != nullptr ? text->empty() : value == false || value.empty();
}

}  // namespace

AdapterConfig adapter_config(const std::string& text, const std::string& source) {
  json config;
  try {
    config = json_in(text);
  } catch (const json::exception& error) {
    throw std::invalid_argument(source + ": is not JSON: " + error.what());
  }
  if (!config.is_object()) {
    throw std::invalid_argument(source + ": is no JSON object");
  }
  const Keys keys(config, source);
  if (const json* type = keys.find("peft_type"); type == nullptr || *type != "LORA") {
    keys.refuse("peft_type", "accepted is \"LORA\": other adapters are not implemented");
  }
  AdapterConfig read;
  Lora& lora = read.lora;
  lora.rank = keys.find("r") == nullptr ? 8 : keys.size("r");
  if (const json* alpha = keys.find("lora_alpha")) {
    if (!alpha->is_number() || !std::isfinite(alpha->get<double>())) {
      keys.refuse("lora_alpha", "accepted is a number");
    }
    lora.alpha = alpha->get<double>();
  }
  lora.targets = targets_in(keys, config);
  lora.rslora = keys.flag("use_rslora", false);
  lora.bias = lora_bias(keys.name("bias", "none", {"none", "all", "lora_only"}));
  lora.dropout = keys.probability("lora_dropout", 0.0);
  // Others change what the base model's weights are, and the file does not say to what.
  if (const json* begin = keys.find("init_lora_weights");
      begin != nullptr && !begin->is_boolean() && *begin != "gaussian") {
    keys.refuse(
        "init_lora_weights",
        "accepted is true, false or \"gaussian\": others change the base model's weights");
  }
  std::vector<std::string> known = {
      "peft_type",
      "r",
      "lora_alpha",
      "target_modules",
      "use_rslora",
      "bias",
      "lora_dropout",
      "init_lora_weights"};
  known.insert(known.end(), std::begin(kDescriptions), std::end(kDescriptions));
  for (const auto& [key, value] : config.items()) {
    if (std::ranges::find(known, key) == known.end() && !says_nothing(value)) {
      keys.refuse(
          key, "it is not implemented: accepted is null, false, or an empty list or object");
    }
  }
  if (const json* base = keys.find("base_model_name_or_path"); base != nullptr) {
    if (!base->is_string()) {
      keys.refuse("base_model_name_or_path", "accepted is the name or folder of a model");
    }
    read.base_model = base->get<std::string>();
  }
  return read;
}

std::string adapter_config_of(const Model& model, const std::string& base_model) {
  if (!model.lora) {
    throw std::invalid_argument("adapter_config_of: the model has no adapters");
  }
  const Lora& lora = *model.lora;
  const bool input_first = weight_names(text_shape(model)).input_first;
  const auto modules = modules_of(model);
  const Modules targets = resolved(model, lora);
  json config = settings_of(lora, targets);
  // A short name may be the end of another module's, too: then PEFT gets the names of all layers.
  Lora by_short_names = lora;
  by_short_names.targets.assign(targets.begin(), targets.end());
  if (resolved(model, by_short_names) != targets) {
    config["target_modules"] = json::array();
    for (const std::string& module : targets) {
      for (const std::string& name : modules.at(module)) {
        config["target_modules"].push_back(name);
      }
    }
  }
  config["peft_type"] = "LORA";
  config["task_type"] = model.masked_lm ? json(nullptr) : json("CAUSAL_LM");
  config["base_model_name_or_path"] = base_model;
  config["lora_dropout"] = lora.dropout;
  config["fan_in_fan_out"] = input_first;
  config["init_lora_weights"] = true;
  config["inference_mode"] = true;
  return config.dump(2) + "\n";
}

}  // namespace paradyse
