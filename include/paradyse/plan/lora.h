// Low-rank adapters (LoRA, Hu et al. 2021) of text models: the model's weights are frozen, and what
// is trained is, for a product y = x W^T, an addition to it:
//
//   y = x W^T + s (x A^T) B^T     A [r, inputs], B [outputs, r], s = alpha / r (or alpha / sqrt(r))
//
// Settings and names are those of PEFT's LoraConfig.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace paradyse {

struct Lora {
  // Which biases of the model are trained, too: PEFT's bias.  lora_only: those of the products that
  // have an adapter; all: every weight with "bias" in its name.
  enum class Bias { none, all, lora_only };

  std::int64_t rank = 8;  // r
  double alpha = 8;       // lora_alpha
  // target_modules: names of linear layers, or the last of them ("q_proj", "mlp.up_proj"), of all
  // layers alike; or the one name "all-linear": all but the head.
  std::vector<std::string> targets = {"all-linear"};
  bool rslora = false;  // use_rslora
  Bias bias = Bias::none;
  double dropout = 0;  // lora_dropout, which is not implemented: training refuses it

  [[nodiscard]] double scale() const;
  friend bool operator==(const Lora&, const Lora&) = default;
};

std::string to_string(Lora::Bias bias);
// Throws std::invalid_argument for another name than "none", "all" and "lora_only".
Lora::Bias lora_bias(const std::string& name);

struct Model;

// The model with its weights frozen and adapters beside them.  Throws std::invalid_argument, naming
// what was asked for and what there is, for a multi-axis model, a rank below 1, and a target that
// no product of its layers is called.
Model with_lora(const Model& model, const Lora& lora);

// What the text of PEFT's adapter_config.json says; `source` names the file in messages.  Throws
// std::invalid_argument naming the key for what is not implemented here.
struct AdapterConfig {
  Lora lora;
  std::string base_model;  // base_model_name_or_path; "": it says none
};
AdapterConfig adapter_config(const std::string& text, const std::string& source);
// The text of the adapter_config.json of a model that with_lora() made, as PEFT reads it.
std::string adapter_config_of(const Model& model, const std::string& base_model);

}  // namespace paradyse
