// The judge: a model on one rank in plain torch autograd, without our ops, layouts or programs.
//
// Slow and obviously right; `paradyse check` and the tests compare every gradient with it. Do not
// tune it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/model_shape.h"

namespace paradyse::reference {

struct DocumentLoss {
  double sum = 0;          // of the token losses
  std::int64_t count = 0;  // predicted tokens: those scored against a label that counts
};

struct Answer {
  double loss = 0;  // sum over documents / predicted tokens (0 / 0 is 0)
  std::vector<DocumentLoss> documents;
  std::map<std::string, at::Tensor>
      gradients;  // of `loss`, by Hugging Face name, same dtype as the weights
};

// Loss and every gradient for a batch of documents, each run by itself, unpacked and unpadded.
// `weights`: by Hugging Face name (a tied head absent or ignored); their dtype is the dtype of the
// computation (rotary tables and statistics included).  `labels`: one for every token, negative
// ones not counted; a masked LM scores token i against label i, others against label i + 1; those
// may have none, which means their tokens.  `dropout_seed`: draws the model's dropout; absent:
// none.
Answer model(
    const ModelShape& shape,
    const std::map<std::string, at::Tensor>& weights,
    const std::vector<std::vector<std::int32_t>>& documents,
    const std::vector<std::vector<std::int32_t>>& labels = {},
    std::optional<std::uint64_t> dropout_seed = std::nullopt);

// [tokens, vocabulary] What the model says comes after each token of a document (of a masked LM:
// what it takes the token for), before the softmax.  Without gradients.
at::Tensor logits(
    const ModelShape& shape,
    const std::map<std::string, at::Tensor>& weights,
    const std::vector<std::int32_t>& document);

}  // namespace paradyse::reference
