// A strategy of your own: one builder on the plan side, from which all else follows.
//
// TokenGatherZ gathers the tokens (as MegatronTS does) and the weights (as ZeRO-3 does), so it runs
// on groups of any size.  Each rank computes queries, keys and values of its own heads for all
// tokens, attends, and reshards the outputs by tokens.  The bytes that it sends and saves are known
// before it runs, its gradients come from the backward passes of its ops, and recomputation and
// offload work without further code.
#include <cstdio>

#include "paradyse/plan/plan.h"
#include "paradyse/plan/writer.h"
#include "paradyse/run/gradients.h"

using namespace paradyse;  // an example may
namespace {

Program token_gather_z(const Task& task) {
  const PartShape& shape = task.shape();
  const std::int64_t D = shape.head_dim;
  Writer w(task);
  const std::vector<Heads> heads = own_heads(shape, task.documents.ranks());

  const ValueId stack = w.gather();
  const ValueId xn = w.normed_input();
  const ValueId xg = w.redistribute(xn, w.layout(xn).whole(), "xg", /*again=*/true);
  std::vector<std::vector<Term>> terms;  // each rank's rows of q, k and v
  for (const Heads& mine : heads) {
    const auto rows = [&](const char* matrix, Interval of) {
      return w.term(stack, w.weights().rows(matrix, {of.begin * D, of.end * D}));
    };
    terms.push_back({rows("q", mine.query), rows("k", mine.key), rows("v", mine.key)});
  }
  const ValueId qkv = w.qkv(
      xg, {stack}, terms, heads, "qkv", w.all_rows(qkv_width(shape), qkv_columns(shape, heads)));
  const std::int64_t width = shape.heads * shape.head_dim;
  const ValueId o = w.attention({qkv}, heads, w.all_rows(width, output_columns(shape, heads)));
  return w.residual(w.linear_transposed(
      w.redistribute(o, w.own_rows(width), "o_T"),
      stack,
      w.terms(stack, w.weights().rows("o")),
      w.layout(w.input())));
}

}  // namespace

int main() {
  add_strategy(
      {.kind = "attention",
       .name = "TokenGatherZ",
       .verb = Verb::gather,
       .build = token_gather_z,
       .summary = "tokens and weights are gathered; outputs are resharded by tokens"});

  const Model model = model_from_config(
      R"({"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 6,
          "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 50,
          "vocab_size": 61})",
      "this example");
  const std::vector<std::int64_t> lengths = {41, 1, 7};
  std::vector<std::vector<std::int32_t>> documents;
  for (const std::int64_t n : lengths) {
    auto& document = documents.emplace_back();
    for (std::int64_t i = 0; i < n; ++i) {
      document.push_back(static_cast<std::int32_t>((i * i + 3 * n) % model.vocab()));
    }
  }
  const auto run = [&](const std::string& attention, int ranks, RankReport* counted) {
    const std::vector<LayerChoice> layers(
        static_cast<std::size_t>(model.layers), text_layer(attention, "gather", Recompute::light));
    const Plan plan = uniform_plan(model, lengths, ranks, layers);
    *counted = predicted_report(plan, model, 0, precision_of(Dtype::float64));
    GradientRequest request{.model = model, .plan = &plan, .items = items_of(documents)};
    request.fill = [](Parameters& parameters) { parameters.initialize(/*seed=*/1); };
    return gradients(request);
  };

  RankReport counted;
  const GradientAnswer alone = run("DataZ", 1, &counted);
  bool right = true;
  for (const int ranks : {1, 2, 3, 4}) {
    const GradientAnswer answer = run("TokenGatherZ", ranks, &counted);
    const double error = compare_gradients(answer.gradients, alone.gradients).worst;
    const RankReport& did = answer.ranks[0];
    std::printf(
        "%d ranks: largest relative difference of any gradient %.1e; rank 0 sent %lld bytes "
        "(counted %lld), saved %lld (counted %lld)\n",
        ranks,
        error,
        static_cast<long long>(did.bytes_sent),
        static_cast<long long>(counted.bytes_sent),
        static_cast<long long>(did.saved_bytes),
        static_cast<long long>(counted.saved_bytes));
    right = right && error < 1e-10 && did.bytes_sent == counted.bytes_sent &&
            did.saved_bytes == counted.saved_bytes;
  }
  return right ? 0 : 1;
}
