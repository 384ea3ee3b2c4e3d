// The judge of language models.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/plan/model/text/text_shape.h"
#include "src/run/reference/reference.h"

namespace paradyse::reference {

// Loss and every gradient for a batch of documents, each run by itself, unpacked and unpadded.
// `weights`: by Hugging Face name (a tied head absent or ignored); their dtype is the dtype of the
// computation (rotary tables and statistics included).  `dropout_seed`: draws the model's dropout;
// absent: none.
Answer text_answer(
    const TextShape& shape,
    const Weights& weights,
    const std::vector<Item>& documents,
    std::optional<std::uint64_t> dropout_seed = std::nullopt);

// [tokens, vocabulary] What the model says comes after each token of a document (of a masked LM:
// what it takes the token for), before the softmax.  Without gradients.
at::Tensor logits(const TextShape& shape, const Weights& weights, TokenView document);

}  // namespace paradyse::reference
