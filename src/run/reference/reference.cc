#include "src/run/reference/reference.h"

#include <stdexcept>

#include "src/run/reference/evoformer.h"
#include "src/run/reference/stdit.h"
#include "src/run/reference/text.h"

namespace paradyse::reference {
namespace {

struct Judge {
  const char* family;
  Answer (*answer)(const Model& model, const Weights& weights, const Batch& batch);
  at::Tensor (*part)(
      const Model& model, const std::string& part, const Weights& weights, const Streams& in);
};

constexpr Judge kJudges[] = {
    {.family = "text",
     .answer =
         [](const Model& model, const Weights& weights, const Batch& batch) {
           return text_answer(
               text_shape(model), weights, batch.documents, batch.labels, batch.dropout_seed);
         },
     .part = nullptr},
    {.family = "stdit",
     .answer =
         [](const Model& model, const Weights& weights, const Batch& batch) {
           const StditShape shape = stdit_shape(model);
           return of_samples(
               model, weights, batch.samples, [&](const Weights& leaves, const Sample& sample) {
                 return stdit_loss(shape, leaves, sample);
               });
         },
     .part = [](const Model& model,
                const std::string& part,
                const Weights& weights,
                const Streams& in) { return stdit_part(stdit_shape(model), part, weights, in); }},
    {.family = "evoformer",
     .answer =
         [](const Model& model, const Weights& weights, const Batch& batch) {
           const EvoformerShape shape = evoformer_shape(model);
           return of_samples(
               model, weights, batch.samples, [&](const Weights& leaves, const Sample& sample) {
                 return evoformer_loss(shape, leaves, sample);
               });
         },
     .part =
         [](const Model& model,
            const std::string& part,
            const Weights& weights,
            const Streams& in) {
           return evoformer_part(evoformer_shape(model), part, weights, in);
         }}};

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
  return judge_of(model).answer(model, weights, batch);
}

at::Tensor part(
    const Model& model, const std::string& part, const Weights& weights, const Streams& streams) {
  const Judge& judge = judge_of(model);
  if (judge.part == nullptr) {
    throw std::invalid_argument("reference: '" + model.name + "' is not judged part by part");
  }
  return judge.part(model, part, weights, streams);
}

}  // namespace paradyse::reference
