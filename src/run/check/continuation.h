// What a language model would write on: a look at a small model, by the reference, which runs the
// whole text again for each token.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/model.h"

namespace paradyse {

struct ContinuationRequest {
  std::vector<std::int32_t> prompt = {};  // at least one token
  std::int64_t tokens = 0;                // to write
  double temperature = 1;                 // 0: always the likeliest; else logits are divided by it
  std::int64_t top_k = 0;                 // drawn from the so many likeliest alone; 0: from all
  double top_p = 1;                       // and from the fewest likeliest that have this share
  std::uint64_t seed = 1;                 // of the draws
  std::int64_t window = 0;                // the last so many tokens are looked at; 0: all
  std::optional<std::int64_t> end_id = {};  // the last token where it comes
};

// The new tokens, drawn as Transformers does: logits by the temperature, then top_k, then top_p.
// `weights`: by Hugging Face name.  The same for the same request, whatever else. Throws
// std::invalid_argument for a masked LM, which writes nothing on, an empty prompt and a token
// outside the vocabulary.
std::vector<std::int32_t> continuation(
    const Model& model,
    const std::map<std::string, at::Tensor>& weights,
    const ContinuationRequest& request);

// Bytes as UTF-8 text: what is none of it as U+FFFD.
std::string text_of_bytes(const std::vector<std::int32_t>& tokens);

}  // namespace paradyse
