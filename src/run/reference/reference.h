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

#include "paradyse/plan/model.h"
#include "paradyse/run/detail/item.h"

namespace paradyse::reference {

using Weights = std::map<std::string, at::Tensor>;  // by stored name

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

struct Batch {
  std::vector<Item> items = {};
  std::optional<std::uint64_t> dropout_seed = {};  // draws the model's dropout; absent: none
};

// The weights of the model without adapters (lora.h) that computes what these compute with them.
Weights merged(const Model& model, const Weights& weights);

// Loss and every gradient of a batch by the judge of the model's family; of a model with adapters
// the gradients of what it trains, by the chain rule from those of merged().
Answer answer(const Model& model, const Weights& weights, const Batch& batch);

// What a part of a model of several dims writes to its stream; `weights` without a layer's prefix.
// Throws std::out_of_range for a weight or stream that is not there, std::invalid_argument for a
// part that the model has not got.
at::Tensor part(
    const Model& model,
    const std::string& part,
    const Weights& weights,
    const std::map<std::string, at::Tensor>& streams);

// [tokens, vocabulary] What a language model says comes after each token of a document (of a masked
// LM: what it takes the token for), before the softmax.  Without gradients, and by merged()
// weights. Throws std::invalid_argument for a model of another family, and for a token outside the
// vocabulary.
at::Tensor logits(const Model& model, const Weights& weights, TokenView document);

}  // namespace paradyse::reference
