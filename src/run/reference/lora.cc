// W' = W + s B A, of a weight W [outputs, inputs]: so dB = s dW' A^T and dA = s B^T dW'.  GPT-2
// stores W transposed.
#include "src/run/reference/lora.h"

#include <set>
#include <string>

#include "src/plan/model/text/text_shape.h"

namespace paradyse::reference {
namespace {

constexpr const char* kA = ".lora_A.weight";

std::string module_of(const std::string& name, const std::string& ending) {
  return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : "";
}

at::Tensor as_product(const Model& model, const at::Tensor& weight) {
  return text_shape(model).architecture == "gpt2" ? weight.t() : weight;
}

}  // namespace

Weights merged(const Model& model, const Weights& weights) {
  Weights base;
  for (const auto& [name, weight] : weights) {
    if (name.find(".lora_") == std::string::npos) {
      base[name] = weight;
    }
  }
  for (const auto& [name, a] : weights) {
    if (const std::string module = module_of(name, kA); !module.empty()) {
      const at::Tensor added =
          at::matmul(weights.at(module + ".lora_B.weight"), a) * model.lora->scale();
      at::Tensor& weight = base.at(module + ".weight");
      weight = weight + as_product(model, added);
    }
  }
  return base;
}

Answer of_adapters(const Model& model, const Weights& weights, Answer merged) {
  const Lora& lora = *model.lora;
  Answer answer{.loss = merged.loss, .documents = std::move(merged.documents), .gradients = {}};
  std::set<std::string> modules;
  for (const auto& [name, a] : weights) {
    const std::string module = module_of(name, kA);
    if (module.empty()) {
      continue;
    }
    modules.insert(module);
    const at::Tensor grad = as_product(model, merged.gradients.at(module + ".weight"));
    const std::string b = module + ".lora_B.weight";
    answer.gradients[b] = at::matmul(grad, a.t()) * lora.scale();
    answer.gradients[name] = at::matmul(weights.at(b).t(), grad) * lora.scale();
  }
  for (const auto& [name, grad] : merged.gradients) {
    const bool of_module = modules.contains(module_of(name, ".bias"));
    if ((lora.bias == Lora::Bias::all && name.find("bias") != std::string::npos) ||
        (lora.bias == Lora::Bias::lora_only && of_module)) {
      answer.gradients[name] = grad;
    }
  }
  return answer;
}

}  // namespace paradyse::reference
