// Heads of BERT and RoBERTa have their bias twice: under the head itself, which counts, and beside
// it.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>

namespace paradyse {

struct HeadBias {
  const char* beside;
  const char* own;
};
inline constexpr HeadBias kHeadBiases[] = {
    {"cls.predictions.bias", "cls.predictions.decoder.bias"},
    {"lm_head.bias", "lm_head.decoder.bias"}};

// The two names, one of which this is; null: it is none.
inline const HeadBias* head_bias(const std::string& name) {
  const auto* const found = std::ranges::find_if(
      kHeadBiases, [&](const HeadBias& one) { return name == one.beside || name == one.own; });
  return found == std::end(kHeadBiases) ? nullptr : found;
}

}  // namespace paradyse
