// What a language model would write on: a look at a small model, by the reference, which runs the
// whole text again for each token.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/model.h"

namespace paradyse {

struct ContinuationRequest {
  std::vector<std::int32_t> prompt = {};  // at least one token
  std::int64_t tokens = 0;                // to write
  double temperature = 1;                 // 0: always the likeliest; else logits are divided by it
  std::uint64_t seed = 1;                 // of the draws
  std::int64_t window = 0;                // the last so many tokens are looked at; 0: all
};

// The new tokens.  `weights`: by Hugging Face name.  The same for the same request, whatever else.
// Throws std::invalid_argument for a masked LM, which writes nothing on, an empty prompt and a
// token outside the vocabulary.
std::vector<std::int32_t> continuation(
    const Model& model,
    const std::map<std::string, at::Tensor>& weights,
    const ContinuationRequest& request);

// Bytes as UTF-8 text: what is none of it as U+FFFD.
std::string text_of_bytes(const std::vector<std::int32_t>& tokens);

}  // namespace paradyse
