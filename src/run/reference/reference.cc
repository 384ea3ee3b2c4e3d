#include "src/run/reference/reference.h"

#include <stdexcept>

#include "src/run/reference/evoformer.h"
#include "src/run/reference/lora.h"
#include "src/run/reference/stdit.h"
#include "src/run/reference/text.h"

namespace paradyse::reference {
namespace {

struct Judge {
  const char* family;
  Answer (*answer)(const Model& model, const Weights& weights, const Batch& batch);
  at::Tensor (*part)(
      const Model& model, const std::string& part, const Weights& weights, const Streams& in);
  at::Tensor (*logits)(const Model& model, const Weights& weights, TokenView document);
};

// Of a family whose batches are samples.
template <auto shape_of, auto loss_of, auto part_of>
constexpr Judge judge_of_samples(const char* family) {
  return {
      .family = family,
      .answer =
          [](const Model& model, const Weights& weights, const Batch& batch) {
            const auto shape = shape_of(model);
            return of_samples(
                model,
                weights,
                batch.items,
                batch.dropout_seed,
                [&](const Weights& leaves, const Item& sample, const Draws& draws) {
                  return loss_of(shape, leaves, sample, draws);
                });
          },
      .part = [](const Model& model,
                 const std::string& part,
                 const Weights& weights,
                 const Streams& in) { return part_of(shape_of(model), part, weights, in); },
      .logits = nullptr};
}

constexpr Judge kJudges[] = {
    {.family = "text",
     .answer =
         [](const Model& model, const Weights& weights, const Batch& batch) {
           return text_answer(text_shape(model), weights, batch.items, batch.dropout_seed);
         },
     .part = nullptr,
     .logits = [](const Model& model,
                  const Weights& weights,
                  TokenView document) { return logits(text_shape(model), weights, document); }},
    judge_of_samples<stdit_shape, stdit_loss, stdit_part>("stdit"),
    judge_of_samples<evoformer_shape, evoformer_loss, evoformer_part>("evoformer")};

const Judge& judge_of(const Model& model) {
  for (const Judge& judge : kJudges) {
    if (model.family == judge.family) {
      return judge;
    }
  }
  throw std::invalid_argument("reference: no judge of models of the family '" + model.family + "'");
}

}  // namespace

Answer answer(const Model& model, const Weights& weights, const Batch& batch) {
  const Judge& judge = judge_of(model);
  if (!model.lora) {
    return judge.answer(model, weights, batch);
  }
  return of_adapters(model, weights, judge.answer(model, merged(model, weights), batch));
}

at::Tensor part(
    const Model& model, const std::string& part, const Weights& weights, const Streams& streams) {
  const Judge& judge = judge_of(model);
  if (judge.part == nullptr) {
    throw std::invalid_argument("reference: '" + model.name + "' is not judged part by part");
  }
  return judge.part(model, part, weights, streams);
}

at::Tensor logits(const Model& model, const Weights& weights, TokenView document) {
  const Judge& judge = judge_of(model);
  if (judge.logits == nullptr) {
    throw std::invalid_argument("reference: '" + model.name + "' is no language model");
  }
  return judge.logits(model, weights, document);
}

}  // namespace paradyse::reference
