// An MLP strategy of your own, in a program that uses only the installed headers of ParaDySe.
//
// PiecesZ computes each rank's own tokens and gathers the weights in pieces of the FFN width, one
// after another.  Its option is the number of pieces, and groups may have any size.  (`pass` takes
// one piece for each rank, and its group must be the whole sharding group.)  More pieces take less
// memory and more messages.  Predicted costs, recomputation and gradients follow from the builder.
// Plan files and checks know the option from its declaration.
#include <cstdio>

#include "paradyse/plan/plan.h"
#include "paradyse/plan/writer.h"
#include "paradyse/run/gradients.h"

using namespace paradyse;  // an example may
namespace {

Program pieces_z(const Task& task) {
  const PartShape& shape = task.shape();
  Writer w(task);

  const ValueId xn = w.normed_input();
  w.recompute_from_here();  // what is computed piece by piece is recomputed
  ValueId y = -1;
  for (const Piece& piece : even_cuts(shape.ffn, static_cast<int>(task.option("pieces", 2)))) {
    const Interval width = piece.front();
    const WeightRows in = w.weights().between(mlp_input(shape), "up", width);
    const WeightRows down = w.weights().rows("down", width);
    const ValueId stack = w.gather({in, down});
    const ValueId h = w.linear(xn, {stack}, w.terms(stack, in), "h", w.own_rows(in.rows()));
    const ValueId a = w.activation(w.bias(h, Role::in_bias, mlp_columns(shape, width)));
    y = w.linear_transposed(a, stack, w.terms(stack, down), w.layout(w.input()), y);
  }
  return w.residual(y);
}

std::string more_than_the_width(std::int64_t pieces, const Task& task) {
  return task.part == nullptr || pieces <= task.shape().ffn
             ? ""
             : "the width is " + std::to_string(task.shape().ffn);
}

}  // namespace

int main() {
  add_strategy(
      {.kind = "mlp",
       .name = "PiecesZ",
       .verb = Verb::gather,
       .build = pieces_z,
       .options =
           {{.name = "pieces",
             .meaning = "PiecesZ: pieces of the width (default: 2)",
             .why_not = more_than_the_width}},
       .summary = "own tokens; weights are gathered in pieces of the FFN width"});

  const Model model = model_from_config(
      R"({"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 6,
          "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 51,
          "vocab_size": 61})",
      "this example");
  const std::vector<std::int64_t> lengths = {41, 1, 7};
  std::vector<std::vector<std::int32_t>> documents;
  for (const std::int64_t n : lengths) {
    auto& document = documents.emplace_back();
    for (std::int64_t i = 0; i < n; ++i) {
      document.push_back(static_cast<std::int32_t>((i * i + n) % model.vocab()));
    }
  }

  // The plan file keeps the option, too: it is written, read back and checked.
  LayerChoice layer = text_layer("UlyssesZ", "PiecesZ");
  set_options(layer, {{"pieces", 3}});
  const Plan ours =
      plan_from_json(to_json(uniform_plan(model, lengths, 3, {layer, layer})), "ours");
  for (const std::string& problem : problems(ours, {.model = model})) {
    std::printf("%s\n", problem.c_str());
    return 1;
  }
  const LayerChoice plain = text_layer("DataZ", "gather");
  const Plan alone = uniform_plan(model, lengths, 1, {plain, plain});
  const auto answer = [&](const Plan& plan) {
    return gradients(
        {.model = model,
         .fill = [](Parameters& parameters) { parameters.initialize(1); },
         .plan = &plan,
         .items = items_of(documents)});
  };
  const GradientAnswer mine = answer(ours);
  const GradientAnswer expected = answer(alone);
  const GradientError error = compare_gradients(mine.gradients, expected.gradients);
  std::printf(
      "%s on 3 ranks: loss %.12f, on one rank %.12f; worst gradient differs by %.1e\n",
      name(layer).c_str(),
      mine.batch.loss,
      expected.batch.loss,
      error.worst);
  return error.worst < 1e-10 ? 0 : 1;
}
