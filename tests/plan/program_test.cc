// Programs, their schedules and their costs: what strategy_costs.md says, found by folding.
//
// The closed forms, for LLaMA's attention with grouped keys and gated MLP, by hand.  A rank of p
// has t = T/p tokens.  Widths: H of the stream, Q = N D of the queries, K' = K D of the keys, F of
// the feed-forward.  Where p divides T, N, K and F, elements saved a rank are
//   UlyssesZ attention: x, xn, qkv_N, o_N, o_T    t (2 H + (Q + 2 K') + 2 Q), and l = t N
//   MegatronTS attention: x, xn, qkv, o           t (2 H + (Q + 2 K') + Q), and l; xg comes again
//   DataZ attention (p = 1): as MegatronTS on one rank
//   MLP, both verbs: x, xn, h, a                  t (2 H + 2 F + F)
// (rotated in place; y is overwritten by the sum.)  With Q = K' = H and F = 4 H in two matrices
// these are the 7 + 10 = 17 A/p and 6 + 10 = 16 A/p of strategy_costs.md.  Elements sent a rank, f
// = (p-1)/p:
//   gather of a part's weights W: f W forward; backward f W again and f W of gradients.
//     W = (2 Q + 2 K') H for attention, 3 F H for the MLP
//   UlyssesZ: f t (Q + 2 K') and f t Q, each way
//   MegatronTS and `hold`: f T H to gather xn, f T H to scatter y; backward the same, and xn again
#include "paradyse/plan/program.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <ostream>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "paradyse/plan/cost.h"
#include "paradyse/plan/detail/schedule.h"
#include "paradyse/plan/strategy.h"
#include "src/plan/model/text/text_shape.h"

namespace paradyse {
namespace {

constexpr Precision kElements{.activation = 1, .statistic = 1};  // bytes are then elements

TextShape gqa() {
  return {
      .layers = 2,
      .hidden = 32,
      .heads = 16,
      .kv_heads = 8,
      .head_dim = 4,  // Q = 64 is not H
      .ffn = 40,
      .vocab = 48};
}

// Nothing divides anything.
TextShape odd() {
  return {
      .layers = 2, .hidden = 10, .heads = 6, .kv_heads = 3, .head_dim = 2, .ffn = 7, .vocab = 11};
}

// A model and documents on a group of a weight domain.
struct Group {
  Model model;
  Documents documents;
  int domain = 1;
};

Group task(const TextShape& model, std::vector<std::int64_t> lengths, int ranks, int domain) {
  return {
      .model = text_model(model),
      .documents = packed(std::move(lengths), ranks, model.causal),
      .domain = domain};
}

Group even_task(const TextShape& model, int p) { return task(model, {32, 16}, p, p); }
constexpr std::int64_t kTokens = 48;  // of even_task

Program program_of(const Group& group, const PartChoice& choice, bool keep = true) {
  const Task task = task_of(group.model, choice.part, group.documents, group.domain);
  return scheduled_part(task, choice, keep).program();
}

Timeline timeline(
    const Group& group,
    std::span<const LayerChoice> layers,
    bool keep = true,
    Messages messages = {}) {
  return timeline(group.model, group.documents, group.domain, layers, keep, messages);
}

Program attention_program(const std::string& name, const Group& group, Recompute level) {
  return program_of(group, {.part = "attention", .strategy = name, .recompute = level});
}

Program mlp_program_at(Verb verb, const Group& group, Recompute level, int tiles = 1) {
  return program_of(
      group,
      {.part = "mlp",
       .strategy = to_string(verb),
       .recompute = level,
       .options = {{"token_tiles", tiles}}});
}

Program embedding_program(const Group& group) {
  return program_of(group, {.part = "embedding", .strategy = "gather"});
}

Program head_program(const Group& group, bool keep) {
  return program_of(group, {.part = "head", .strategy = "gather"}, keep);
}

Seat seat(int rank) { return {.group_rank = rank, .domain_rank = rank}; }

std::int64_t saved_elements(const Program& program, int rank) {
  std::int64_t sum = 0;
  for (const ValueId value : schedule(program).saved) {
    sum += bytes(program, value, seat(rank), kElements);
  }
  return sum;
}

struct Volume {
  std::int64_t forward = 0;
  std::int64_t backward = 0;

  friend bool operator==(const Volume&, const Volume&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Volume& v) {
    return out << v.forward << " forward, " << v.backward << " backward";
  }
};

// Elements that a rank sends.
Volume volume(const Program& program, Seat where) {
  const Schedule order = schedule(program);
  Volume sum;
  const auto add = [&](const std::vector<ScheduledOp>& steps, std::int64_t& into) {
    for (const ScheduledOp& step : steps) {
      const Op& op = program.ops[static_cast<std::size_t>(step.op)];
      const Phase phase = step.adjoint ? Phase::adjoint : Phase::forward;
      into += traffic({program, op, where, phase, kElements}).bytes;
    }
  };
  add(order.forward, sum.forward);
  add(order.backward, sum.backward);
  return sum;
}

std::vector<std::string> saved_names(const Program& program) {
  std::vector<std::string> names;
  for (const ValueId value : schedule(program).saved) {
    names.push_back(program.values[static_cast<std::size_t>(value)].name);
  }
  return names;
}

// Every program there is for the task, at every level: what a property has to hold for.
std::vector<Program> all_programs(const Group& task) {
  const int p = task.documents.ranks();
  const bool may_hold = p == task.domain;
  std::vector<Program> programs;
  for (const Recompute level : kRecomputeLevels) {
    for (const Strategy& s : strategies("attention")) {
      if ((s.verb != Verb::gather && !may_hold) || (s.one_rank && p != 1)) {
        continue;
      }
      programs.push_back(attention_program(s.name, task, level));
    }
    if (may_hold) {
      programs.push_back(mlp_program_at(Verb::hold, task, level));
      programs.push_back(mlp_program_at(Verb::pass, task, level));
    }
    programs.push_back(mlp_program_at(Verb::gather, task, level));
  }
  programs.push_back(embedding_program(task));
  programs.push_back(head_program(task, true));
  return programs;
}

std::string described(const Program& program) {
  return program.part + " " + program.strategy + " on " + std::to_string(program.ranks()) + " of " +
         std::to_string(program.domain) + "\n" + explain(program);
}

// Layouts of every kind: even, uneven, empty pieces, no documents at all.
std::vector<Group> all_tasks(const TextShape& model) {
  std::vector<Group> tasks;
  for (const int p : {1, 2, 3, 4, 5, 8}) {
    for (const auto& lengths : std::vector<std::vector<std::int64_t>>{
             {32, 16}, {}, {1}, {0, 3, 17, 2}, {1, 1, 1, 1, 1}}) {
      tasks.push_back(task(model, lengths, p, p));
      tasks.push_back(task(model, lengths, p, 2 * p));
    }
  }
  return tasks;
}

// --- closed forms --------------------------------------------------------------------------------

std::int64_t squares(const Documents& tokens) {
  std::int64_t sum = 0;
  for (const std::int64_t n : tokens.lengths) {
    sum += n * n;
  }
  return sum;
}

TEST(ClosedForm, SavedElements) {
  const TextShape m = gqa();
  const std::int64_t hidden = m.hidden;
  const std::int64_t queries = m.heads * m.head_dim;
  const std::int64_t keys = m.kv_heads * m.head_dim;
  for (const int p : {1, 2, 4, 8}) {
    const Group even = even_task(m, p);
    const std::int64_t t = kTokens / p;
    const std::int64_t ulysses =
        t * (2 * hidden + (queries + 2 * keys) + (p == 1 ? 1 : 2) * queries + m.heads);
    const std::int64_t megatron = t * (2 * hidden + (queries + 2 * keys) + queries + m.heads);
    const std::int64_t mlp = t * (2 * hidden + 3 * m.ffn);
    for (int r = 0; r < p; ++r) {
      SCOPED_TRACE(testing::Message() << "rank " << r << " of " << p);
      EXPECT_EQ(saved_elements(attention_program("UlyssesZ", even, Recompute::none), r), ulysses);
      EXPECT_EQ(
          saved_elements(attention_program("MegatronTS", even, Recompute::none), r), megatron);
      EXPECT_EQ(
          saved_elements(attention_program("MegatronCZ", even, Recompute::none), r), megatron);
      EXPECT_EQ(
          saved_elements(attention_program("AllGatherKV", even, Recompute::none), r), megatron);
      EXPECT_EQ(
          saved_elements(attention_program("ColossalZ", even, Recompute::none), r),
          megatron - t * m.heads + m.heads * squares(even.documents) / p);
      EXPECT_EQ(
          saved_elements(attention_program("METP", even, Recompute::none), r),
          t * (2 * hidden + queries + m.heads));
      EXPECT_EQ(
          saved_elements(mlp_program_at(Verb::pass, even, Recompute::none), r), t * 2 * hidden);
      EXPECT_EQ(saved_elements(mlp_program_at(Verb::gather, even, Recompute::none), r), mlp);
      EXPECT_EQ(saved_elements(mlp_program_at(Verb::hold, even, Recompute::none), r), mlp);
      if (p == 1) {
        EXPECT_EQ(saved_elements(attention_program("DataZ", even, Recompute::none), r), megatron);
      }
      EXPECT_EQ(
          saved_elements(mlp_program_at(Verb::gather, even, Recompute::light), r),
          t * (hidden + 2 * m.ffn));
      EXPECT_EQ(
          saved_elements(attention_program("MegatronTS", even, Recompute::full), r), t * hidden);
    }
  }
}

TEST(ClosedForm, Volumes) {
  const TextShape m = gqa();
  const std::int64_t hidden = m.hidden;
  const std::int64_t queries = m.heads * m.head_dim;
  const std::int64_t keys = m.kv_heads * m.head_dim;
  for (const int p : {1, 2, 4, 8}) {
    const Group even = even_task(m, p);
    const auto f = [&](std::int64_t elements) { return elements / p * (p - 1); };
    const std::int64_t attention = f((2 * queries + 2 * keys) * hidden);
    const std::int64_t mlp = f(3 * m.ffn * hidden);
    const std::int64_t heads = f(kTokens / p * (queries + 2 * keys)) + f(kTokens / p * queries);
    const std::int64_t stream = f(kTokens * hidden);
    const std::int64_t pairs = f(kTokens * 2 * keys);
    for (int r = 0; r < p; ++r) {
      SCOPED_TRACE(testing::Message() << "rank " << r << " of " << p);
      for (const Recompute level : kRecomputeLevels) {
        SCOPED_TRACE(to_string(level));
        const bool again = level == Recompute::attention_output || level == Recompute::full;
        EXPECT_EQ(
            volume(attention_program("UlyssesZ", even, level), seat(r)),
            (Volume{attention + heads, 2 * attention + (again ? 2 : 1) * heads}));
        // y is not wanted by any adjoint: it is never scattered again
        EXPECT_EQ(
            volume(attention_program("MegatronTS", even, level), seat(r)),
            (Volume{2 * stream, 3 * stream}));
        EXPECT_EQ(
            volume(mlp_program_at(Verb::hold, even, level), seat(r)),
            (Volume{2 * stream, 3 * stream}));
        EXPECT_EQ(
            volume(mlp_program_at(Verb::gather, even, level), seat(r)), (Volume{mlp, 2 * mlp}));
        EXPECT_EQ(volume(mlp_program_at(Verb::pass, even, level), seat(r)), (Volume{mlp, 2 * mlp}));
        // keys and values round the ring, and again with their gradients
        const Volume ring{
            attention + pairs, 2 * attention + (level == Recompute::full ? 3 : 2) * pairs};
        EXPECT_EQ(volume(attention_program("MegatronCZ", even, level), seat(r)), ring);
        EXPECT_EQ(volume(attention_program("ColossalZ", even, level), seat(r)), ring);
        EXPECT_EQ(volume(attention_program("METP", even, level), seat(r)), ring);
        // gathered, gathered again, and their gradients scattered
        EXPECT_EQ(
            volume(attention_program("AllGatherKV", even, level), seat(r)),
            (Volume{attention + pairs, 2 * attention + 2 * pairs}));
      }
    }
  }
}

// A row of u ranks trades its tokens for heads, p / u ranks are a ring; nothing is kept twice but
// the output on both sides of its way back.
TEST(ClosedForm, GridOfUlyssesAndRing) {
  const TextShape m = gqa();
  const std::int64_t queries = m.heads * m.head_dim;
  const std::int64_t keys = m.kv_heads * m.head_dim;
  for (const int p : {2, 4, 8}) {
    for (int u = 1; u <= p && m.kv_heads % u == 0; u *= 2) {
      Group even = even_task(m, p);
      const std::int64_t t = kTokens / p;
      const std::int64_t weights = 2 * (queries + keys) * m.hidden / p * (p - 1);
      const std::int64_t row = t * (2 * queries + 2 * keys) / u * (u - 1);
      const std::int64_t ring = t * 2 * keys * (p / u - 1);
      const Program program = program_of(
          even, {.part = "attention", .strategy = "USP", .options = {{"ulysses_degree", u}}});
      for (int r = 0; r < p; ++r) {
        SCOPED_TRACE(testing::Message() << "rank " << r << " of " << p << ", u " << u);
        EXPECT_EQ(
            volume(program, seat(r)), (Volume{weights + row + ring, 2 * weights + row + 2 * ring}));
        EXPECT_EQ(
            saved_elements(program, r),
            t * (2 * m.hidden + (u == 1 ? 2 : 3) * queries + 2 * keys + m.heads));
      }
    }
  }
}

// Tiles of an MLP keep its input alone, hold a tile's width at a time, and send the same but for
// the gradients of gathered weights, which are summed in float32.
TEST(ClosedForm, TokenTiles) {
  TextShape m = gqa();
  m.ffn = 64 * m.hidden;  // where the memory goes
  constexpr Precision kNarrow{2, 4};
  for (const int p : {1, 2, 4}) {
    for (const Verb verb : kVerbs) {
      const Group whole = even_task(m, p);
      const auto peak = [&](int tiles) {
        LayerChoice choice = text_layer(
            verb == Verb::hold ? "MegatronTS" : "UlyssesZ",
            to_string(verb),
            Recompute::full,
            Recompute::full);
        part_of(choice, "mlp").options["token_tiles"] = tiles;
        return footprint(
                   timeline(whole, std::vector<LayerChoice>(2, choice)),
                   {.group_rank = p - 1, .domain_rank = p - 1},
                   kNarrow,
                   0)
            .peak_bytes;
      };
      const Program program = mlp_program_at(verb, whole, Recompute::none, /*tiles=*/4);
      for (int r = 0; r < p; ++r) {
        SCOPED_TRACE(testing::Message() << "rank " << r << " of " << p << " " << to_string(verb));
        EXPECT_EQ(saved_elements(program, r), kTokens / p * 2 * m.hidden);
        EXPECT_EQ(
            volume(program, seat(r)),
            volume(mlp_program_at(verb, whole, Recompute::none), seat(r)));
      }
      if (verb != Verb::pass) {  // which makes a p-th of the width at a time anyhow
        EXPECT_LT(peak(4), peak(1));
      }
    }
  }
}

// What METP is for: 5 A/p, where the others keep 16.  The head's norm and the log-sum-exp are the
// rest.
TEST(ClosedForm, MetpSavesFiveActivationsOfALayer) {
  TextShape m = gqa();
  m.heads = m.kv_heads = 12;
  m.head_dim = 64;
  m.hidden = 768;
  m.ffn = 4 * m.hidden;
  for (const int p : {1, 2, 3, 4}) {
    const Group even = task(m, {96, 48}, p, p);
    const std::int64_t a = 144 * m.hidden;
    for (int r = 0; r < p; ++r) {
      const std::int64_t saved =
          saved_elements(attention_program("METP", even, Recompute::none), r) +
          saved_elements(mlp_program_at(Verb::pass, even, Recompute::none), r);
      EXPECT_GE(saved * p, 5 * a);
      EXPECT_LE(static_cast<double>(saved * p), 1.1 * 5.0 * static_cast<double>(a));
    }
  }
}

// A group of one rank in a domain of p sends weights and nothing else, whatever its documents.
TEST(ClosedForm, DataZSendsWeightsOnly) {
  const TextShape m = gqa();
  const std::int64_t weights = 2 * (m.heads + m.kv_heads) * m.head_dim * m.hidden;
  for (const int p : {1, 2, 4, 8}) {
    for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{}, {5, 9}}) {
      for (int r = 0; r < p; ++r) {
        const Program program = attention_program("DataZ", task(m, lengths, 1, p), Recompute::none);
        const std::int64_t sent = weights / p * (p - 1);
        EXPECT_EQ(volume(program, {.group_rank = 0, .domain_rank = r}), (Volume{sent, 2 * sent}));
      }
    }
  }
}

// Embedding: the table once each way.  Head: the same, both in the forward pass; a vocabulary of
// several tiles comes twice, for the sums and for the gradients.
TEST(ClosedForm, EndsOfTheModel) {
  TextShape m = gqa();
  for (const std::int64_t vocab :
       {std::int64_t{48}, Tiles().vocabulary, 2 * Tiles().vocabulary + 16}) {
    m.vocab = vocab;
    const bool tiles = vocab > Tiles().vocabulary;
    for (const int p : {1, 2, 4, 8}) {
      const Group even = even_task(m, p);
      const std::int64_t table = vocab * m.hidden / p * (p - 1);
      Volume embedding;
      Volume head;
      Volume evaluation;
      const auto add = [](Volume& sum, const Volume& one) {
        sum.forward += one.forward;
        sum.backward += one.backward;
      };
      for (int r = 0; r < p; ++r) {
        add(embedding, volume(embedding_program(even), seat(r)));
        add(head, volume(head_program(even, true), seat(r)));
        add(evaluation, volume(head_program(even, false), seat(r)));
      }
      SCOPED_TRACE(testing::Message() << "p " << p << " vocabulary " << vocab);
      EXPECT_EQ(embedding, (Volume{p * table, p * table}));
      EXPECT_EQ(head, (Volume{p * table * (tiles ? 3 : 2), 0}));
      EXPECT_EQ(evaluation, (Volume{p * table, 0}));
    }
  }
}

// --- recomputation -------------------------------------------------------------------------------

TEST(Recomputation, SavesWhatTheLevelSays) {
  using Names = std::vector<std::string>;
  const TextShape m = gqa();
  const Group even = even_task(m, 4);
  const std::map<Recompute, Names> ulysses = {
      {Recompute::none, {"x", "xn", "qkv_N", "o", "l", "o_T"}},
      {Recompute::light, {"x", "qkv_N", "o", "l", "o_T"}},
      {Recompute::attention_output, {"x", "o", "l"}},
      {Recompute::full, {"x"}}};
  const std::map<Recompute, Names> megatron = {
      {Recompute::none, {"x", "xn", "qkv_rotated", "o", "l"}},
      {Recompute::light, {"x", "qkv_rotated", "o", "l"}},
      {Recompute::attention_output, {"x", "o", "l"}},
      {Recompute::full, {"x"}}};
  std::map<Recompute, Names> data = megatron;
  std::map<Recompute, Names> ring = megatron;
  for (const Recompute level : {Recompute::none, Recompute::light}) {
    std::replace(
        data[level].begin(),
        data[level].end(),
        std::string("qkv_rotated"),
        std::string("qkv_T_rotated"));
    auto& names = ring[level];
    *std::find(names.begin(), names.end(), "qkv_rotated") = "q_rotated";
    names.insert(std::find(names.begin(), names.end(), "q_rotated") + 1, "kv_rotated");
  }
  const std::map<Recompute, Names> mlp = {
      {Recompute::none, {"x", "xn", "h", "a"}},
      {Recompute::light, {"x", "h"}},
      {Recompute::attention_output, {"x"}},
      {Recompute::full, {"x"}}};
  for (const Recompute level : kRecomputeLevels) {
    SCOPED_TRACE(to_string(level));
    EXPECT_EQ(saved_names(attention_program("UlyssesZ", even, level)), ulysses.at(level));
    EXPECT_EQ(saved_names(attention_program("MegatronTS", even, level)), megatron.at(level));
    EXPECT_EQ(saved_names(attention_program("DataZ", task(m, {9}, 1, 4), level)), data.at(level));
    EXPECT_EQ(saved_names(attention_program("MegatronCZ", even, level)), ring.at(level));
    EXPECT_EQ(saved_names(attention_program("AllGatherKV", even, level)), ring.at(level));
    EXPECT_EQ(saved_names(mlp_program_at(Verb::gather, even, level)), mlp.at(level));
    EXPECT_EQ(saved_names(mlp_program_at(Verb::hold, even, level)), mlp.at(level));
  }
}

// A higher level saves no more, on any rank, and weights are not saved unless they are kept.
TEST(Recomputation, SavesLessAtEachLevel) {
  const TextShape m = odd();
  for (const Group& any : all_tasks(m)) {
    std::map<std::string, std::vector<std::int64_t>> least;  // by part and strategy, of each rank
    for (const Program& program : all_programs(any)) {
      const std::string name = program.part + program.strategy;
      std::vector<std::int64_t> saved;
      for (int r = 0; r < program.ranks(); ++r) {
        saved.push_back(saved_elements(program, r));
        if (least.contains(name)) {
          EXPECT_LE(saved.back(), least[name][static_cast<std::size_t>(r)]) << described(program);
        }
      }
      least[name] = saved;
      for (const ValueId value : schedule(program).saved) {
        EXPECT_FALSE(program.values[static_cast<std::size_t>(value)].over_domain)
            << described(program);
      }
    }
  }
}

TEST(Recomputation, WithoutKeepSavesNothing) {
  const TextShape m = odd();
  for (const Group& any : all_tasks(m)) {
    for (const Program& program : all_programs(any)) {
      const Schedule order = schedule(program, {.keep = false});
      EXPECT_TRUE(order.saved.empty());
      EXPECT_TRUE(order.backward.empty());
      EXPECT_EQ(order.forward.size(), program.ops.size());
    }
  }
}

// --- schedules -----------------------------------------------------------------------------------

// A machine whose values are alive or not: the walk hands every op what it reads, drops everything
// once (what an op in place took over, too), keeps exactly what is saved over the turn, and leaves
// nothing behind.
class Judge : public Machine {
 public:
  explicit Judge(const Timeline& timeline) : timeline_(timeline) {}

  std::set<std::pair<std::size_t, ValueId>> alive;
  std::set<std::pair<std::size_t, ValueId>> gradients;
  // Nothing is held, nothing under way.
  [[nodiscard]] bool over() const { return alive.empty() && asked_.empty() && begun_.empty(); }

  void prefetch(std::size_t part, int op) override {
    for (const ValueId in : op_of(part, op).in) {
      EXPECT_TRUE(alive.contains({part, in})) << name(part, op) << " sends " << value(part, in);
    }
    make(part, op_of(part, op).out[0]);
    EXPECT_TRUE(asked_.insert({part, op}).second);
  }

  void forward(std::size_t part, int op) override {
    const Op& o = op_of(part, op);
    for (const ValueId in : o.in) {
      EXPECT_TRUE(alive.contains({part, in})) << name(part, op) << " reads " << value(part, in);
    }
    const bool asked = asked_.erase({part, op}) == 1;
    EXPECT_TRUE(asked || o.kind != OpKind::gather_weights) << "never asked: " << name(part, op);
    if (asked) {
      EXPECT_TRUE(alive.contains({part, o.out[0]})) << "asked for, then lost: " << name(part, op);
      return;
    }
    if (o.in_place) {
      alive.erase({part, o.in.back()});
      taken_.insert({part, o.in.back()});
    }
    for (const ValueId out : o.out) {
      make(part, out);
    }
  }

  void begin_adjoint(std::size_t part, int op) override {
    expect_ready(part, op);
    EXPECT_TRUE(begun_.insert({part, op}).second);
    for (const ValueId in : op_of(part, op).in) {
      if (!program(part).values[static_cast<std::size_t>(in)].over_domain) {
        gradients.insert({part, in});
      }
    }
  }
  void adjoint(std::size_t part, int op) override {
    expect_ready(part, op);
    begun_.erase({part, op});
    for (const ValueId in : op_of(part, op).in) {
      gradients.insert({part, in});
    }
  }

  void drop_value(std::size_t part, ValueId dead) override {
    const bool there = alive.erase({part, dead}) + taken_.erase({part, dead}) == 1;
    EXPECT_TRUE(there) << "dropped, but not there: " << value(part, dead);
  }

  void offload(std::size_t part, ValueId moved) override {
    EXPECT_EQ(alive.erase({part, moved}), 1U)
        << "moved away, but not there: " << value(part, moved);
    host_.insert({part, moved});
  }

  void fetch(std::size_t part, ValueId moved) override {
    EXPECT_EQ(host_.erase({part, moved}), 1U) << "fetched, but not there: " << value(part, moved);
    make(part, moved);
  }

  void drop_gradients(std::size_t part, int op) override {
    for (const ValueId out : op_of(part, op).out) {
      gradients.erase({part, out});
    }
  }

  void hand_forward(std::size_t part, std::size_t end) override {
    const ScheduledPart& maker = timeline_[part];
    for (std::size_t i = 0; i < program(part).writes.size(); ++i) {
      const ValueId out = program(part).writes[i].value;
      EXPECT_TRUE(alive.contains({part, out})) << "not there to hand on: " << value(part, out);
      for (const Place& reader : maker.readers[i]) {
        if (reader.part < end) {
          make(reader.part, reader.value);
        }
      }
    }
  }

  void hand_backward(std::size_t part) override {
    for (std::size_t i = 0; i < program(part).reads.size(); ++i) {
      EXPECT_EQ(gradients.erase({part, program(part).reads[i].value}), 1U);
      const Place to = timeline_[part].gradient_to[i];
      if (to.part != kNobody) {
        gradients.insert({to.part, to.value});
      }
    }
  }

 private:
  [[nodiscard]] const Program& program(std::size_t part) const { return timeline_[part].program(); }
  [[nodiscard]] const Op& op_of(std::size_t part, int op) const {
    return program(part).ops[static_cast<std::size_t>(op)];
  }
  [[nodiscard]] std::string name(std::size_t part, int op) const {
    return program(part).part + " " + program(part).strategy + ": " +
           to_string(op_of(part, op).kind);
  }
  // A message's own values are in use until it is over.
  void expect_ready(std::size_t part, int op) const {
    const Op& o = op_of(part, op);
    for (const ValueId needed : o.needs) {
      EXPECT_TRUE(alive.contains({part, needed}))
          << "the adjoint of " << name(part, op) << " reads " << value(part, needed);
    }
    const bool starts = o.kind == OpKind::cross_entropy;  // from the loss
    const bool weights = o.kind == OpKind::hold_weights;
    if (!starts && !weights) {
      EXPECT_TRUE(gradients.contains({part, o.out[0]})) << "no gradient reaches " << name(part, op);
    }
  }
  [[nodiscard]] std::string value(std::size_t part, ValueId id) const {
    return program(part).part + "'s " + program(part).values[static_cast<std::size_t>(id)].name;
  }
  void make(std::size_t part, ValueId id) {
    EXPECT_TRUE(alive.insert({part, id}).second) << "made twice: " << value(part, id);
  }

  const Timeline& timeline_;
  std::set<std::pair<std::size_t, int>> asked_;      // and yet to run
  std::set<std::pair<std::size_t, int>> begun_;      // adjoints that are yet to end
  std::set<std::pair<std::size_t, ValueId>> taken_;  // by an op in place; still to be dropped
  std::set<std::pair<std::size_t, ValueId>> host_;   // moved to host memory
};

std::vector<LayerChoice> random_choices(const Group& task, std::mt19937& random) {
  const auto pick = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  std::vector<LayerChoice> layers;
  for (std::int64_t l = 0; l < task.model.layers; ++l) {
    std::vector<std::string> names;
    std::vector<std::string> verbs = {"gather"};
    for (const Strategy& s : strategies("attention")) {
      const bool whole_domain = s.verb == Verb::gather || task.documents.ranks() == task.domain;
      if (whole_domain && (!s.one_rank || task.documents.ranks() == 1)) {
        names.push_back(s.name);
      }
    }
    if (task.documents.ranks() == task.domain) {
      verbs.emplace_back("hold");
      verbs.emplace_back("pass");
    }
    const std::string& attention = names[pick(names.size())];
    const std::string& mlp = verbs[pick(verbs.size())];
    const Recompute of_attention = kRecomputeLevels[pick(4)];
    const Recompute of_mlp = kRecomputeLevels[pick(4)];
    layers.push_back(text_layer(attention, mlp, of_attention, of_mlp));
    const bool whole = pick(2) == 0;
    for (PartChoice& part : layers.back()) {
      part.offload = pick(3) == 0;
      part.with_layer = whole;
    }
  }
  return layers;
}

TEST(Schedule, HandsEveryOpWhatItReadsAndLeavesNothing) {
  std::mt19937 random(11);
  for (const TextShape& m : {gqa(), odd()}) {
    for (const Group& any : all_tasks(m)) {
      for (int trial = 0; trial < 8; ++trial) {
        const Messages messages{.overlap = trial % 2 == 1, .reshard_after_forward = trial % 4 < 2};
        const Timeline parts = timeline(any, random_choices(any, random), /*keep=*/true, messages);
        Judge judge(parts);
        walk_forward(parts, judge);
        std::set<std::pair<std::size_t, ValueId>> saved;
        for (std::size_t part = 0; part < parts.size(); ++part) {
          for (const ValueId value : parts[part].waiting) {
            if (!parts[part].schedule().offload) {
              saved.insert({part, value});
            }
          }
        }
        ASSERT_EQ(judge.alive, saved);
        walk_backward(parts, judge);
        ASSERT_TRUE(judge.over());
        if (HasFailure()) {
          return;
        }
      }
      const Timeline evaluation = timeline(any, random_choices(any, random), /*keep=*/false);
      Judge judge(evaluation);
      walk_forward(evaluation, judge);
      ASSERT_TRUE(judge.alive.empty());
    }
  }
}

// What an op overwrites is read by nobody else: no other op, and no adjoint.
TEST(InPlace, OverwritesWhatNobodyElseReads) {
  const TextShape m = odd();
  for (const Group& any : all_tasks(m)) {
    for (const Program& program : all_programs(any)) {
      for (const Op& op : program.ops) {
        if (!op.in_place) {
          continue;
        }
        const ValueId taken = op.in.back();
        const Value& from = program.values[static_cast<std::size_t>(taken)];
        const Value& to = program.values[static_cast<std::size_t>(op.out[0])];
        EXPECT_EQ(from.layout.extent(), to.layout.extent()) << described(program);
        for (int r = 0; r < program.ranks(); ++r) {
          EXPECT_EQ(
              local_extent(program, taken, seat(r)), local_extent(program, op.out[0], seat(r)))
              << described(program);
        }
        EXPECT_EQ(from.element, to.element) << described(program);
        for (const Port& port : program.reads) {
          EXPECT_NE(taken, port.value) << described(program);
        }
        for (const Op& other : program.ops) {
          const auto reads = [&](const std::vector<ValueId>& values) {
            return std::find(values.begin(), values.end(), taken) != values.end();
          };
          EXPECT_FALSE(reads(other.needs)) << described(program);
          EXPECT_TRUE(&other == &op || !reads(other.in)) << described(program);
        }
      }
    }
  }
}

TEST(InPlace, IsRefusedWhereTheOperandIsSaved) {
  const TextShape m = gqa();
  Program program = attention_program("UlyssesZ", even_task(m, 2), Recompute::none);
  for (Op& op : program.ops) {
    if (op.in_place) {
      op.needs = {op.in.back()};
      EXPECT_THROW(schedule(program), std::logic_error);
      return;
    }
  }
  FAIL() << "no op in place";
}

// A redistribution is one of those that run: copies to copies, or a sum to a partition, backward
// the other way round; and its copy has every element of the ranks' pieces.
void expect_moves_as_laid_out(const Program& program, const Op& op) {
  const Layout& from = program.values[static_cast<std::size_t>(op.in[0])].layout;
  const Layout& to = program.values[static_cast<std::size_t>(op.out[0])].layout;
  EXPECT_EQ(from.extent(), to.extent());
  EXPECT_FALSE(to.partial);
  EXPECT_EQ(op.transposed, from.partial);
  EXPECT_FALSE(lie_alike(from, to, program.ranks()));
  if (from.partial) {
    EXPECT_TRUE(is_partition(to, program.ranks()));
  }

  ASSERT_EQ(op.copies.size(), 1U);
  EXPECT_EQ(op.copies[0].from(), from.partial ? to : from);
  EXPECT_EQ(op.copies[0].to(), from.partial ? to.whole() : to);
  const Transfer& table = op.copies[0].table();
  std::vector<std::int64_t> written(static_cast<std::size_t>(program.ranks()));
  for (const Box& box : table.boxes) {
    written[static_cast<std::size_t>(box.destination)] += box.elements();
  }
  for (int r = 0; r < program.ranks(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    EXPECT_EQ(
        table.source[i],
        local_extent(program, op.transposed ? op.out[0] : op.in[0], seat(r)).elements());
    EXPECT_EQ(
        table.destination[i],
        local_extent(program, op.transposed ? op.in[0] : op.out[0], seat(r)).elements());
    EXPECT_EQ(written[i], table.destination[i]);
  }
}

// What an op sends: copies among the ranks that its kind meets, alike for all seats, or hops
// without one; nothing where it meets nobody.
TEST(Program, ExchangesWithThoseThatItsKindMeets) {
  const TextShape m = gqa();
  std::set<OpKind> seen;
  for (const Group& any : all_tasks(m)) {
    for (const Program& program : all_programs(any)) {
      for (const Op& op : program.ops) {
        const OpTraits& kind = traits(op.kind);
        const bool over_domain = kind.meets == OpTraits::Meets::domain;
        seen.insert(op.kind);
        for (const Phase phase : {Phase::forward, Phase::adjoint}) {
          const auto of = [&](int rank) {
            return exchanges({program, op, seat(rank), phase, kElements});
          };
          const std::vector<Exchange> first = of(0);
          if (kind.meets == OpTraits::Meets::nobody) {
            EXPECT_TRUE(first.empty()) << described(program);
          }
          for (int r = 0; r < program.ranks(); ++r) {
            const std::vector<Exchange> mine = of(r);
            ASSERT_EQ(mine.size(), first.size()) << described(program);
            Traffic sum;
            for (std::size_t i = 0; i < mine.size(); ++i) {
              EXPECT_EQ(mine[i].copy, first[i].copy) << described(program);
              EXPECT_EQ(mine[i].copy == nullptr, kind.rings > 0) << described(program);
              EXPECT_GT(mine[i].element_bytes, 0) << described(program);
              if (mine[i].copy == nullptr) {
                sum += {mine[i].sent.elements, mine[i].sent.messages, 1};
                continue;
              }
              EXPECT_EQ(mine[i].copy->ranks(), over_domain ? program.domain : program.ranks());
              const Sent sent = mine[i].copy->sent(mine[i].transposed)[static_cast<std::size_t>(r)];
              sum += {sent.elements, sent.messages, 1};
            }
            if (over_domain && program.domain == 1) {
              sum = {};  // nobody is met
            }
            EXPECT_EQ(sum, traffic({program, op, seat(r), phase, kElements})) << described(program);
          }
        }
      }
    }
  }
  EXPECT_GE(seen.size(), 11);
}

// h is read twice: the reader before the last must add to the gradient that the last one makes.
TEST(Schedule, RefusesAnAdjointThatOverwritesAGradient) {
  const auto program = [](OpKind first, OpKind last) {
    Program two;
    two.documents = packed({4}, 1, true);
    for (const char* name : {"h", "a", "b"}) {
      two.values.push_back({.name = name, .layout = matrix("tokens", {4, 2})});
    }
    append(two, {.kind = first, .in = {0}, .out = {1}, .needs = {0}});
    append(two, {.kind = last, .in = {0}, .out = {2}, .needs = {0}});
    return two;
  };
  EXPECT_NO_THROW(schedule(program(OpKind::norm, OpKind::dropout)));
  EXPECT_NO_THROW(schedule(program(OpKind::activation, OpKind::norm)));
  EXPECT_THROW(schedule(program(OpKind::dropout, OpKind::norm)), std::logic_error);
  EXPECT_NO_THROW(schedule(program(OpKind::dropout, OpKind::norm), {.keep = false}));
}

// Shapes fit: a linear's operand is placed as its result says, redistributions move what they say.
TEST(Program, IsWellFormed) {
  for (const TextShape& m : {gqa(), odd()}) {
    for (const Group& any : all_tasks(m)) {
      for (const Program& program : all_programs(any)) {
        std::set<ValueId> made;
        for (const Port& port : program.reads) {
          made.insert(port.value);
          EXPECT_EQ(program.values[static_cast<std::size_t>(port.value)].maker, -1)
              << described(program);
        }
        for (const Op& op : program.ops) {
          for (const ValueId in : op.in) {
            EXPECT_TRUE(made.contains(in)) << described(program);
          }
          for (const ValueId out : op.out) {
            EXPECT_TRUE(made.insert(out).second) << described(program);
            EXPECT_EQ(
                program.values[static_cast<std::size_t>(out)].maker, &op - program.ops.data());
          }
          if (op.kind == OpKind::redistribute) {
            SCOPED_TRACE(described(program));
            expect_moves_as_laid_out(program, op);
          }
          for (const Redistribution& copy : op.copies) {
            const bool over_group = op.kind == OpKind::redistribute;
            EXPECT_EQ(copy.ranks(), over_group ? program.ranks() : program.domain);
          }
          for (const ValueId needed : op.needs) {
            EXPECT_TRUE(made.contains(needed)) << described(program);
          }
          EXPECT_EQ(op.needs, traits(op.kind).needs(op)) << described(program);
        }
        for (int r = 0; r < program.ranks(); ++r) {
          for (const Op& op : program.ops) {
            if (op.kind != OpKind::linear) {
              continue;
            }
            std::int64_t rows = 0;
            for (const Term& term : op.terms[static_cast<std::size_t>(r)]) {
              const Extent stack =
                  local_extent(program, op.in[static_cast<std::size_t>(term.operand)], seat(r));
              EXPECT_GE(term.first, 0) << described(program);
              EXPECT_LE(term.first + term.elements(), stack.elements()) << described(program);
              rows += term.rows;
            }
            const Extent x = local_extent(program, op.in[0], seat(r));
            const Extent y = local_extent(program, op.out[0], seat(r));
            EXPECT_EQ(op.transposed ? x.cols : y.cols, rows) << described(program);
            EXPECT_EQ(x.rows, y.rows) << described(program);
          }
        }
      }
    }
  }
}

// The blocks of a rank are the documents, and every query head finds the key/value head that the
// model says among the rank's own: head h reads h / (N / K).
TEST(AttentionBlocks, CoverDocumentsAndPairHeads) {
  TextShape m = gqa();
  for (const auto& [heads, kv_heads] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {8, 8}, {8, 2}, {6, 1}, {12, 3}, {1, 1}}) {
    m.heads = heads;
    m.kv_heads = kv_heads;
    for (const int p : {1, 2, 3, 4, 5, 8}) {
      const Program program =
          attention_program("UlyssesZ", task(m, {5, 0, 3}, p, p), Recompute::none);
      for (const Op& op : program.ops) {
        if (op.kind != OpKind::attention) {
          continue;
        }
        SCOPED_TRACE(testing::Message() << heads << "/" << kv_heads << " on " << p);
        EXPECT_EQ(heads_per_key(op), heads / kv_heads);
        std::int64_t covered = 0;
        for (int r = 0; r < p; ++r) {
          const Heads mine = op.heads[static_cast<std::size_t>(r)];
          const auto blocks = attention_blocks(program, op, r);
          ASSERT_EQ(blocks.size(), mine.query.empty() ? 0U : 2U);
          if (!blocks.empty()) {
            EXPECT_EQ(blocks[0].queries, (Interval{0, 5}));
            EXPECT_EQ(blocks[1].keys, (Interval{5, 8}));
          }
          for (std::int64_t head = mine.query.begin; head < mine.query.end; ++head) {
            const std::int64_t key = head / heads_per_key(op);
            EXPECT_TRUE(mine.key.begin <= key && key < mine.key.end);
            ++covered;
          }
        }
        EXPECT_EQ(covered, heads);
      }
    }
  }
}

TEST(AttentionBlocks, CountPairsAsOneByOne) {
  for (std::int64_t queries = 1; queries <= 6; ++queries) {
    for (std::int64_t keys = 1; keys <= 6; ++keys) {
      for (std::int64_t diagonal = -8; diagonal <= 8; ++diagonal) {
        std::int64_t pairs = 0;
        for (std::int64_t i = 0; i < queries; ++i) {
          for (std::int64_t j = 0; j < keys; ++j) {
            pairs += j <= i + diagonal ? 1 : 0;
          }
        }
        AttentionBlock block{{0, queries}, {0, keys}, diagonal};
        EXPECT_EQ(block.pairs(true), pairs) << queries << " " << keys << " " << diagonal;
        EXPECT_EQ(block.pairs(false), queries * keys);
        for (block.window = 1; block.window <= 7; ++block.window) {
          std::int64_t seen = 0;
          for (std::int64_t i = 0; i < queries; ++i) {
            for (std::int64_t j = 0; j < keys; ++j) {
              seen += j <= i + diagonal && j > i + diagonal - block.window ? 1 : 0;
            }
          }
          EXPECT_EQ(block.pairs(true), seen) << diagonal << " window " << block.window;
        }
      }
    }
  }
}

// Causal, or to both sides; how wide.
std::vector<std::pair<bool, std::int64_t>> windows() {
  std::vector<std::pair<bool, std::int64_t>> all;
  for (const bool causal : {true, false}) {
    for (const std::int64_t window : {1, 2, 5, 9, 22, 40}) {
      all.emplace_back(causal, window);
    }
  }
  return all;
}

// A query and a key are in a block, or among what a rank gathers, just where the one sees the
// other.
TEST(AttentionBlocks, HoldWhatWindowsSeeAndNoMore) {
  for (const auto& [causal, window] : windows()) {
    const Documents documents = packed({1, 0, 23, 2, 9}, 3, causal);
    std::vector<std::pair<std::int64_t, std::int64_t>> of;  // document, token in it
    for (std::size_t d = 0; d < documents.lengths.size(); ++d) {
      for (std::int64_t t = 0; t < documents.lengths[d]; ++t) {
        of.emplace_back(d, t);
      }
    }
    const auto tokens = [](const Piece& piece) {
      std::vector<std::int64_t> all;
      for (const Interval run : piece) {
        for (std::int64_t t = run.begin; t < run.end; ++t) {
          all.push_back(t);
        }
      }
      return all;
    };
    const auto sees = [&, backwards = causal, near = window](std::int64_t q, std::int64_t k) {
      const auto& [document, i] = of[static_cast<std::size_t>(q)];
      const auto& [other, j] = of[static_cast<std::size_t>(k)];
      return document == other && i - j < near && (backwards ? j <= i : j - i < near);
    };
    for (std::size_t r = 0; r < 3; ++r) {
      const std::vector<std::int64_t> queries = tokens(documents.cuts[r]);
      std::set<std::int64_t> needed;
      for (std::size_t s = 0; s < 3; ++s) {
        const std::vector<std::int64_t> keys = tokens(documents.cuts[s]);
        std::set<std::pair<std::int64_t, std::int64_t>> wanted;
        for (const std::int64_t q : queries) {
          for (const std::int64_t k : keys) {
            if (sees(q, k)) {
              wanted.emplace(q, k);
              needed.insert(k);
            }
          }
        }
        std::set<std::pair<std::int64_t, std::int64_t>> held;
        for (const AttentionBlock& block :
             attention_blocks(documents, documents.cuts[r], documents.cuts[s], window)) {
          for (std::int64_t i = 0; i < block.queries.size(); ++i) {
            for (std::int64_t j = 0; j < block.keys.size(); ++j) {
              if (j <= i + block.diagonal &&
                  (block.window == 0 || j > i + block.diagonal - block.window)) {
                held.emplace(
                    queries[static_cast<std::size_t>(block.queries.begin + i)],
                    keys[static_cast<std::size_t>(block.keys.begin + j)]);
              }
            }
          }
        }
        EXPECT_EQ(held, wanted) << "window " << window << (causal ? "" : " to both sides");
      }
      const std::vector<std::int64_t> seen =
          tokens(seen_tokens(documents, documents.cuts[r], window));
      EXPECT_EQ(seen, std::vector<std::int64_t>(needed.begin(), needed.end()));
    }
  }
}

// Every pair of a query and a key that it sees is in one block of one rank, under every strategy;
// what a ring passes on, or a rank gathers, is what some query sees.
TEST(AttentionBlocks, CoverWindowsOnce) {
  TextShape m = gqa();
  const std::vector<std::int64_t> lengths = {1, 0, 23, 2, 9};
  for (const auto& [causal, window] : windows()) {
    m.causal = causal;
    m.window = window;
    std::int64_t pairs = 0;
    for (const std::int64_t n : lengths) {
      for (std::int64_t i = 0; i < n; ++i) {
        pairs += std::min(i + 1, window) + (causal ? 0 : std::min(n - i, window) - 1);
      }
    }
    for (const int p : {1, 2, 3, 4, 6}) {
      const Group group = task(m, lengths, p, p);
      for (const Strategy& strategy : strategies("attention")) {
        if (strategy.one_rank && p > 1) {
          continue;
        }
        SCOPED_TRACE(
            testing::Message() << strategy.name << " on " << p << ", window " << window
                               << (causal ? "" : " to both sides"));
        const Program program = attention_program(strategy.name, group, Recompute::none);
        std::int64_t counted = 0;
        for (const Op& op : program.ops) {
          if (!traits(op.kind).core) {
            continue;
          }
          const bool ring = traits(op.kind).rings > 0;
          for (int r = 0; r < p; ++r) {
            const std::int64_t heads = op.heads[static_cast<std::size_t>(r)].query.size();
            for (int hop = 0; hop < (ring ? ring_size(program, op) : 1); ++hop) {
              const auto blocks =
                  ring ? ring_blocks(program, op, r, hop) : attention_blocks(program, op, r);
              const std::int64_t rows = ring ? ring_rows(program, op, r, hop)
                                             : local_extent(program, keys_of(op), seat(r)).rows;
              for (const AttentionBlock& block : blocks) {
                counted += heads * block.pairs(masks(program));
                EXPECT_LE(block.keys.end, rows);
              }
            }
          }
        }
        EXPECT_EQ(counted, m.heads * pairs);
      }
    }
  }
}

// A document of 64 tokens on 4 ranks, 8 pieces of 8: rank r has pieces r and 7 - r.  Of a window of
// 3 the last two keys of a piece are seen by the one behind it; both go round until that has them.
TEST(ClosedForm, RingsPassWhatWindowsSee) {
  TextShape m = gqa();
  const std::int64_t row = 2 * m.kv_heads * m.head_dim;  // keys and values of a token
  const auto ring = [&](std::int64_t window, const char* name, int rank, Phase phase) {
    m.window = window;
    const Program program = attention_program(name, task(m, {64}, 4, 4), Recompute::none);
    std::int64_t elements = 0;
    for (const Op& op : program.ops) {
      if (traits(op.kind).rings > 0) {
        elements += traffic({program, op, seat(rank), phase, kElements}).bytes;
      }
    }
    return elements;
  };
  for (const char* name : {"MegatronCZ", "METP", "ColossalZ"}) {
    SCOPED_TRACE(name);
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(ring(0, name, r, Phase::forward), 3 * 16 * row);
      EXPECT_EQ(ring(1, name, r, Phase::forward), 0);  // each query sees itself
      EXPECT_EQ(ring(1, name, r, Phase::adjoint), 0);
    }
    // Piece 0 is seen by rank 1, of piece 7 nobody sees any; piece 3 by rank 3 itself, piece 4 by
    // rank 2; all others go to the next rank and to the one before, so all the way round.
    const auto sent = [&](int rank, Phase phase) { return ring(3, name, rank, phase); };
    EXPECT_EQ(sent(0, Phase::forward), (2 + 2 + 4) * row);  // own, of rank 3, of rank 2
    EXPECT_EQ(sent(1, Phase::forward), (4 + 2) * row);      // own, of rank 0: no hop; of rank 3
    EXPECT_EQ(sent(2, Phase::forward), (4 + 4) * row);      // own, of rank 1
    EXPECT_EQ(sent(3, Phase::forward), (2 + 4 + 4) * row);  // own, of ranks 2 and 1
    // The sums go all the way home.
    EXPECT_EQ(sent(0, Phase::adjoint) - sent(0, Phase::forward), (2 + 4 + 4) * row);
    EXPECT_EQ(sent(1, Phase::adjoint) - sent(1, Phase::forward), (2 + 2 + 4) * row);
  }
  // A rank gathers what its queries see beside its own: two keys before each of its pieces.
  m.window = 3;
  const Program gathers = attention_program("AllGatherKV", task(m, {64}, 4, 4), Recompute::none);
  m.window = 0;
  const Program all = attention_program("AllGatherKV", task(m, {64}, 4, 4), Recompute::none);
  std::int64_t windowed = 0;
  std::int64_t whole = 0;
  for (int r = 0; r < 4; ++r) {
    windowed += volume(gathers, seat(r)).forward;
    whole += volume(all, seat(r)).forward;
  }
  // pieces 1 to 7, but for piece 4, whose keys before it are its rank's own
  EXPECT_EQ(whole - windowed, 4 * 3 * 16 * row - 6 * 2 * row);
}

// To both sides, a rank has one piece of 16: of a window of 3 the first two keys are seen by the
// rank before it, three hops away, and the last two by the next one.
TEST(ClosedForm, RingsPassWhatWindowsToBothSidesSee) {
  TextShape m = gqa();
  m.causal = false;
  const std::int64_t row = 2 * m.kv_heads * m.head_dim;
  const auto program = [&](std::int64_t window, const char* name) {
    m.window = window;
    return attention_program(name, task(m, {64}, 4, 4), Recompute::none);
  };
  for (const char* name : {"MegatronCZ", "METP", "ColossalZ"}) {
    SCOPED_TRACE(name);
    const Program ring = program(3, name);
    const auto sent = [&](int rank, Phase phase) {
      std::int64_t elements = 0;
      for (const Op& op : ring.ops) {
        if (traits(op.kind).rings > 0) {
          elements += traffic({ring, op, seat(rank), phase, kElements}).bytes;
        }
      }
      return elements;
    };
    // Rank 0 has nobody before it, and rank 3 nobody behind it: of 0 the last keys go one hop, of 3
    // the first keys go to rank 2; those of 1 and 2 go to both sides.
    EXPECT_EQ(sent(0, Phase::forward), (2 + 2 + 4) * row);  // own, of rank 3, of rank 2
    EXPECT_EQ(sent(1, Phase::forward), (4 + 0 + 2) * row);  // own, of rank 0, of rank 3
    EXPECT_EQ(sent(2, Phase::forward), (4 + 4 + 0) * row);  // own, of ranks 1 and 0
    EXPECT_EQ(sent(3, Phase::forward), (2 + 4 + 4) * row);  // own, of ranks 2 and 1
    EXPECT_EQ(sent(0, Phase::adjoint) - sent(0, Phase::forward), (2 + 4 + 4) * row);
  }
  const Program gathers = program(3, "AllGatherKV");
  const Program all = program(0, "AllGatherKV");
  std::int64_t windowed = 0;
  std::int64_t whole = 0;
  for (int r = 0; r < 4; ++r) {
    windowed += volume(gathers, seat(r)).forward;
    whole += volume(all, seat(r)).forward;
  }
  EXPECT_EQ(
      whole - windowed, 4 * 3 * 16 * row - 6 * 2 * row);  // two keys over each border, each way
}

// --- the order of weight collectives -------------------------------------------------------------

// "layer part phase" of each collective over the weight domain as the walk issues it.
class Order : public Machine {
 public:
  explicit Order(const Timeline& timeline) : timeline_(timeline) {
    walk_forward(timeline, *this);
    walk_backward(timeline, *this);
  }
  std::vector<std::string> weights;

  void prefetch(std::size_t part, int op) override {
    if (kind_of(part, op) == OpKind::gather_weights) {
      add("gather", part, op);
    }
  }
  void begin_adjoint(std::size_t part, int op) override {
    if (kind_of(part, op) == OpKind::gather_weights) {
      add("begins to scatter", part, op);
    }
  }
  void forward(std::size_t part, int op) override {
    const OpKind kind = kind_of(part, op);
    if (kind == OpKind::embed || kind == OpKind::cross_entropy) {
      add("forward", part, op);
    }
  }
  void adjoint(std::size_t part, int op) override {
    const OpKind kind = kind_of(part, op);
    if (kind == OpKind::embed || kind == OpKind::gather_weights) {
      add("scatter", part, op);
    }
  }
  void drop_value(std::size_t /*part*/, ValueId /*value*/) override {}
  void offload(std::size_t /*part*/, ValueId /*value*/) override {}
  void fetch(std::size_t /*part*/, ValueId /*value*/) override {}
  void drop_gradients(std::size_t /*part*/, int /*op*/) override {}
  void hand_forward(std::size_t /*part*/, std::size_t /*end*/) override {}
  void hand_backward(std::size_t /*part*/) override {}

 private:
  [[nodiscard]] OpKind kind_of(std::size_t part, int op) const {
    return timeline_[part].program().ops[static_cast<std::size_t>(op)].kind;
  }
  void add(const char* what, std::size_t part, int op) {
    const Program& program = timeline_[part].program();
    std::int64_t elements = 0;
    for (const Redistribution& copy : program.ops[static_cast<std::size_t>(op)].copies) {
      for (const Sent& sent : copy.sent(false)) {
        elements += sent.elements;
      }
    }
    weights.push_back(
        std::to_string(timeline_[part].layer) + " " + program.part + " " + what + " " +
        std::to_string(elements));
  }

  const Timeline& timeline_;
};

// Of what an Order lists, all but the elements.
std::vector<std::string> kinds_of(const std::vector<std::string>& weights) {
  std::vector<std::string> kinds;
  kinds.reserve(weights.size());
  for (const std::string& one : weights) {
    kinds.push_back(one.substr(0, one.find_last_of(' ')));
  }
  return kinds;
}

// The same for every strategy with the same verb, every recompute level, group size and documents:
// so groups of different kinds can run side by side in a weight domain.
TEST(WeightCollectives, ComeInOneOrderForAVerb) {
  for (const TextShape& m : {gqa(), odd()}) {
    const int domain = 4;
    const std::vector<Messages> ways = {
        {},
        {.overlap = true},
        {.reshard_after_forward = false},
        {.overlap = true, .reshard_after_forward = false}};
    std::vector<std::vector<std::string>> expected(ways.size());
    std::mt19937 random(5);
    for (const int p : {1, 2, 3, 4}) {
      for (const auto& lengths : std::vector<std::vector<std::int64_t>>{{32, 16}, {}, {3}}) {
        const Group any = task(m, lengths, p, domain);
        for (int trial = 0; trial < 12; ++trial) {
          std::vector<LayerChoice> layers = random_choices(any, random);
          for (LayerChoice& layer : layers) {
            for (PartChoice& part : layer) {
              part.with_layer = false;  // in all groups of a domain, or in none
            }
            part_of(layer, "mlp").strategy = "gather";
            const char* const gathering[] = {"UlyssesZ", "MegatronCZ", "AllGatherKV"};
            part_of(layer, "attention").strategy =
                p == 1 && trial % 2 == 0 ? "DataZ" : gathering[trial % 3];
          }
          for (std::size_t way = 0; way < ways.size(); ++way) {
            const Timeline parts = timeline(any, layers, /*keep=*/true, ways[way]);
            const Order order(parts);
            if (expected[way].empty()) {
              expected[way] = order.weights;
            }
            ASSERT_EQ(order.weights, expected[way]);
          }
        }
      }
    }
    // Forward: attention, MLP; backward: MLP's gather and scatter, then attention's.  Every gather
    // is issued one part ahead.
    EXPECT_EQ(
        kinds_of(expected[0]),
        (std::vector<std::string>{
            "0 attention gather",
            "-1 embedding forward",
            "0 mlp gather",
            "1 attention gather",
            "1 mlp gather",
            "-1 head forward",
            "1 mlp gather",
            "1 attention gather",
            "1 mlp scatter",
            "0 mlp gather",
            "1 attention scatter",
            "0 attention gather",
            "0 mlp scatter",
            "0 attention scatter",
            "-1 embedding scatter"}));
  }
}

// With overlap gathers are two ahead, and a scatter ends when the next begins.
TEST(WeightCollectives, TravelBesideWork) {
  const Group any = task(gqa(), {20, 7}, 2, 4);
  const std::vector<LayerChoice> layers(2, text_layer("UlyssesZ", "gather"));
  const Timeline parts = timeline(any, layers, /*keep=*/true, {.overlap = true});
  const Order order(parts);
  EXPECT_EQ(
      kinds_of(order.weights),
      (std::vector<std::string>{
          "0 attention gather",
          "0 mlp gather",
          "-1 embedding forward",
          "1 attention gather",
          "1 mlp gather",
          "-1 head forward",
          "1 mlp gather",
          "1 attention gather",
          "0 mlp gather",
          "1 mlp begins to scatter",
          "0 attention gather",
          "1 mlp scatter",
          "1 attention begins to scatter",
          "1 attention scatter",
          "0 mlp begins to scatter",
          "0 mlp scatter",
          "0 attention begins to scatter",
          "-1 embedding scatter",
          "0 attention scatter"}));
}

// What a layer gathered it has, where weights are kept; one that is made again gathers again.
TEST(WeightCollectives, AreFewerWhereWeightsAreKept) {
  const Group any = task(gqa(), {20, 7}, 2, 4);
  std::vector<LayerChoice> layers(2, text_layer("UlyssesZ", "gather"));
  const Messages kept{.reshard_after_forward = false};
  const std::vector<std::string> forward = {
      "0 attention gather",
      "-1 embedding forward",
      "0 mlp gather",
      "1 attention gather",
      "1 mlp gather",
      "-1 head forward"};
  std::vector<std::string> expected = forward;
  const auto then = [&](const std::vector<std::string>& kinds) {
    expected.insert(expected.end(), kinds.begin(), kinds.end());
  };
  then({"1 mlp scatter", "1 attention scatter"});
  then({"0 mlp scatter", "0 attention scatter", "-1 embedding scatter"});
  EXPECT_EQ(kinds_of(Order(timeline(any, layers, /*keep=*/true, kept)).weights), expected);

  set_recompute(layers[0], {.parts = Recompute::none, .layer = true});
  expected = forward;
  then({"0 attention gather", "1 mlp scatter", "1 attention scatter", "0 mlp gather"});
  then({"0 mlp scatter", "0 attention scatter", "-1 embedding scatter"});
  EXPECT_EQ(kinds_of(Order(timeline(any, layers, /*keep=*/true, kept)).weights), expected);

  const Program program = attention_program("UlyssesZ", any, Recompute::full);
  for (const ScheduledOp& step : schedule(program, {.messages = kept}).backward) {
    EXPECT_TRUE(
        step.adjoint || !traits(program.ops[static_cast<std::size_t>(step.op)].kind).prefetched);
  }
}

// What an op of a part's backward pass does, as text: "send x_T back".
std::vector<std::string> backward_steps(const Program& program) {
  std::vector<std::string> steps;
  for (const ScheduledOp& step : schedule(program, {.messages = {.overlap = true}}).backward) {
    const Op& op = program.ops[static_cast<std::size_t>(step.op)];
    const std::string& made = program.values[static_cast<std::size_t>(op.out[0])].name;
    steps.push_back(std::string(step.begin ? "begin " : "") + made + (step.adjoint ? " back" : ""));
  }
  return steps;
}

// Gradients that a product hands to a move are on their way while it makes the weights', and what
// is gathered again is asked for before the attention core goes back.
TEST(Overlap, OfAPartsBackwardPass) {
  const Group even = task(gqa(), {20, 8}, 2, 2);
  EXPECT_EQ(
      backward_steps(attention_program("UlyssesZ", even, Recompute::none)),
      (std::vector<std::string>{
          "out back",
          "w_gathered",
          "begin y back",
          "begin o_T back",
          "y back",
          "o_T back",
          "o back",
          "qkv_N back",
          "qkv_T_rotated back",
          "qkv_T back",
          "xn back",
          "w_gathered back"}));
  EXPECT_EQ(
      backward_steps(attention_program("MegatronTS", even, Recompute::light)),
      (std::vector<std::string>{
          "out back",
          "y_T back",
          "w",
          "y back",
          "xn",
          "begin xg",
          "o back",
          "qkv_rotated back",
          "xg",
          "begin qkv back",
          "begin xg back",
          "qkv back",
          "xg back",
          "xn back",
          "w back"}));
}

// Where a layer is made again as a whole its weights are gathered once more each, and what is in
// use is not gathered beside itself.
TEST(WeightCollectives, OfALayerMadeAgain) {
  const Group any = task(gqa(), {20, 7}, 2, 4);
  std::vector<LayerChoice> layers(2, text_layer("UlyssesZ", "gather"));
  set_recompute(layers[1], {.parts = Recompute::light, .layer = true});
  const Timeline parts = timeline(any, layers);
  const Order order(parts);
  EXPECT_EQ(
      kinds_of(order.weights),
      (std::vector<std::string>{
          "0 attention gather",
          "-1 embedding forward",
          "0 mlp gather",
          "1 attention gather",
          "1 mlp gather",
          "-1 head forward",
          "1 attention gather",
          "1 mlp gather",
          "1 mlp gather",
          "1 attention gather",
          "1 mlp scatter",
          "0 mlp gather",
          "1 attention scatter",
          "0 attention gather",
          "0 mlp scatter",
          "0 attention scatter",
          "-1 embedding scatter"}));
}

// `hold` asks for nothing over the domain, but for keys that ranks have to share.
TEST(WeightCollectives, OfHoldAreTheEndsAndSharedKeys) {
  for (const TextShape& m : {gqa(), odd()}) {
    for (const int p : {1, 2, 3, 4, 8}) {
      const Group any = task(m, {20, 7}, p, p);
      std::vector<std::string> first;
      for (const Recompute level : kRecomputeLevels) {
        const std::vector<LayerChoice> layers(2, text_layer("MegatronTS", "hold", level, level));
        const Timeline parts = timeline(any, layers);
        const Order order(parts);
        if (first.empty()) {
          first = order.weights;
        }
        EXPECT_EQ(order.weights, first) << "p " << p << " " << to_string(level);
      }
      const bool shared = m.kv_heads % p != 0;
      EXPECT_EQ(first.size(), 3U + (shared ? 2U * 3U : 0U)) << "p " << p;
    }
  }
}

// --- footprints ----------------------------------------------------------------------------------

// What the walk holds at the turn is what the schedules save: counted twice, found equal.
TEST(Footprint, HoldsWhatIsSaved) {
  std::mt19937 random(3);
  constexpr Precision kMixed{.activation = 2, .statistic = 4};
  for (const TextShape& m : {gqa(), odd()}) {
    for (const Group& any : all_tasks(m)) {
      const Timeline parts = timeline(any, random_choices(any, random));
      for (int r = 0; r < any.documents.ranks(); ++r) {
        std::int64_t saved = 0;
        for (const ScheduledPart& part : parts) {
          for (const ValueId value : part.waiting) {
            saved += bytes(part.program(), value, seat(r), kMixed);
          }
        }
        const Footprint held = footprint(parts, seat(r), kMixed, 1000);
        ASSERT_EQ(held.saved_bytes + held.offloaded_bytes, saved);
        ASSERT_GE(held.peak_bytes, 1000 + held.saved_bytes + rope_table_bytes(parts, kMixed));
      }
    }
  }
}

TEST(Totals, AddUpTheParts) {
  const TextShape m = gqa();
  const Group even = even_task(m, 4);
  const std::vector<LayerChoice> layers = {
      text_layer("UlyssesZ", "gather", Recompute::none, Recompute::full),
      text_layer("MegatronTS", "hold")};
  const Timeline parts = timeline(even, layers);
  const Totals all = totals(parts, seat(1), kElements);
  std::int64_t sent = 0;
  for (const ScheduledPart& part : parts) {
    const Volume one = volume(part.program(), seat(1));
    sent += one.forward + one.backward;
  }
  EXPECT_EQ(all.traffic.bytes, sent);
  // A matrix product's backward is twice its forward, for all but the head, which does both at
  // once.
  Work head;
  for (const Op& op : parts.back().program().ops) {
    head += work({parts.back().program(), op, seat(1), Phase::forward, kElements});
  }
  EXPECT_DOUBLE_EQ(all.backward.matmul_flops, 2 * (all.forward.matmul_flops - head.matmul_flops));
  EXPECT_DOUBLE_EQ(all.backward.attention_flops, 2.5 * all.forward.attention_flops);
}

// A pair in a domain of four: each rank has the shard of one of two, and half of what a gather
// brings is sent.
TEST(Timeline, HoldsInAPartOfTheDomain) {
  const TextShape m = gqa();
  const Group pair = task(m, {8}, 2, 4);
  const std::vector<LayerChoice> held(2, text_layer("UlyssesZ", "hold"));
  const std::vector<LayerChoice> gathered(2, text_layer("UlyssesZ", "gather"));
  const auto weights = [](const Timeline& parts) -> const Program& {
    return std::ranges::find_if(
               parts, [](const ScheduledPart& part) { return part.program().part == "mlp"; })
        ->program();
  };
  const Timeline a = timeline(pair, held);
  const Timeline b = timeline(pair, gathered);
  const auto elements = [](const Program& program, const Seat& at) {
    const auto found = std::ranges::find(program.values, "w_gathered", &Value::name);
    return local_extent(program, static_cast<ValueId>(found - program.values.begin()), at)
        .elements();
  };
  for (int r = 0; r < 4; ++r) {
    const Seat at{.group_rank = r % 2, .domain_rank = r};
    EXPECT_EQ(2 * elements(weights(a), at), elements(weights(b), at)) << r;
  }
}

// --- refusals ------------------------------------------------------------------------------------

TEST(Timeline, RefusesWhatDoesNotFitTheGroup) {
  const TextShape m = gqa();
  const Group half = task(m, {8}, 2, 4);
  const std::vector<LayerChoice> gathers(2, text_layer("UlyssesZ", "gather"));
  EXPECT_NO_THROW(timeline(half, gathers));
  const auto with = [](const LayerChoice& choice) { return std::vector<LayerChoice>(2, choice); };
  const Group most = task(m, {8}, 3, 4);
  EXPECT_THROW(timeline(most, with(text_layer("MegatronTS", "gather"))), std::invalid_argument);
  EXPECT_THROW(timeline(most, with(text_layer("UlyssesZ", "hold"))), std::invalid_argument);
  EXPECT_THROW(timeline(half, with(text_layer("DataZ", "gather"))), std::invalid_argument);
  EXPECT_THROW(timeline(half, with(text_layer("METP", "gather"))), std::invalid_argument);
  EXPECT_THROW(timeline(half, std::vector<LayerChoice>(3, gathers[0])), std::invalid_argument);

  LayerChoice grid = text_layer("USP", "gather");
  part_of(grid, "attention").options["ulysses_degree"] = 2;
  EXPECT_NO_THROW(timeline(half, with(grid)));
  part_of(grid, "attention").options["ulysses_degree"] = 3;
  EXPECT_THROW(timeline(half, with(grid)), std::invalid_argument);
  LayerChoice other = text_layer("UlyssesZ", "gather");
  part_of(other, "attention").options["ulysses_degree"] = 1;
  EXPECT_THROW(timeline(half, with(other)), std::invalid_argument);
  other = gathers[0];
  part_of(other, "mlp").options["token_tiles"] = -1;
  EXPECT_THROW(timeline(half, with(other)), std::invalid_argument);
}

// Offloading moves what is saved to the host and back: as many bytes, a lower peak, nothing left
// over.
TEST(Footprint, CountsOffloadedBytesOnTheHost) {
  TextShape model;
  model.layers = 6;
  model.hidden = 32;
  model.heads = model.kv_heads = 4;
  model.head_dim = 8;
  model.ffn = 80;
  model.vocab = 64;
  for (const int p : {1, 2, 4}) {
    const Group group = task(model, {700, 1, 30}, p, p);
    LayerChoice choice = text_layer("UlyssesZ", "gather");
    const auto held = [&] {
      const std::vector<LayerChoice> layers(6, choice);
      return footprint(timeline(group, layers), {}, {}, 1000);
    };
    const Footprint all = held();
    EXPECT_EQ(all.offloaded_bytes, 0);
    part_of(choice, "mlp").offload = true;
    const Footprint some = held();
    part_of(choice, "attention").offload = true;
    const Footprint most = held();
    EXPECT_GT(some.offloaded_bytes, 0);
    EXPECT_EQ(some.saved_bytes + some.offloaded_bytes, all.saved_bytes);
    EXPECT_EQ(most.saved_bytes + most.offloaded_bytes, all.saved_bytes);
    EXPECT_LT(some.peak_bytes, all.peak_bytes);
    EXPECT_LT(most.peak_bytes, some.peak_bytes);
    // what is left on the device is the head's
    choice = text_layer("UlyssesZ", "gather");
    EXPECT_LT(most.saved_bytes, all.saved_bytes / 6);
  }
}

TEST(Strategies, RefuseANameThatIsTakenAndNoBuilder) {
  const std::size_t before = strategies("attention").size();
  EXPECT_THROW(add_strategy(strategy("attention", "UlyssesZ")), std::invalid_argument);
  EXPECT_THROW(
      add_strategy({.kind = "attention", .name = "Nothing", .build = nullptr, .summary = ""}),
      std::invalid_argument);
  EXPECT_THROW(remove_strategy("attention", "UlyssesZ"), std::invalid_argument);
  EXPECT_EQ(strategies("attention").size(), before);
}

// One that is added is known to all, and is gone when it is taken away.
TEST(Strategies, AreAddedAndTakenAway) {
  for (const char* const kind : {"attention", "axial_attention", "outer_product"}) {
    const std::vector<Strategy> before(strategies(kind).begin(), strategies(kind).end());
    Strategy own = before.front();
    own.name = "Own";
    int built = 0;
    own.build = [&built, build = own.build](const Task& task) {
      ++built;
      return build(task);
    };
    add_strategy(own);
    EXPECT_EQ(strategies(kind).size(), before.size() + 1);
    EXPECT_THROW(add_strategy(own), std::invalid_argument);
    EXPECT_EQ(strategy(kind, "Own").summary, own.summary);
    if (std::string(kind) == "attention") {
      const Model model = model_from_config(
          R"({"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2,
              "intermediate_size": 8, "vocab_size": 8})",
          "a test");
      const std::vector<LayerChoice> layers = {text_layer("Own", "gather")};
      EXPECT_FALSE(timeline(model, packed({4, 5}, 2, /*causal=*/true), 2, layers).empty());
      EXPECT_GT(built, 0);
    }
    remove_strategy(kind, "Own");
    EXPECT_THROW(strategy(kind, "Own"), std::invalid_argument);
    EXPECT_EQ(strategies(kind).size(), before.size());
  }
}

}  // namespace
}  // namespace paradyse
