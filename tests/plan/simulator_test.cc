// The simulator against what must hold of any schedule, and against the folds: closed forms on one
// rank, bytes, memory, causality, bounds.
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/plan.h"
#include "paradyse/plan/simulate.h"
#include "src/plan/cost/whole_weights.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/simulate/choices.h"
#include "src/plan/simulate/op_cost.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

TextShape model() {
  TextShape m;
  m.layers = 3;
  m.hidden = 64;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 16;
  m.ffn = 160;
  m.vocab = 96;
  return m;
}

DeviceClass device(int count) {
  return {
      .name = "d",
      .count = count,
      .matmul_flops_per_second = 1e12,
      .float32_flops_per_second = 5e11,
      .matmul_fraction = 0.5,
      .attention_fraction = 0.25,
      .memory_bytes_per_second = 1e11,
      .memory_bytes = std::int64_t{1} << 30,
      .launch_seconds = 1e-6,
      .host_bytes_per_second = 1e10};
}

Cluster cluster(int ranks) {
  return {
      .name = "test",
      .ranks_per_node = 2,
      .devices = {device(ranks)},
      .inside_node = {.bytes_per_second = 1e10, .latency_seconds = 2e-6},
      .between_nodes = {.bytes_per_second = 1e9, .latency_seconds = 5e-6}};
}

Cluster without_communication(Cluster c) {
  c.inside_node = c.between_nodes = {.bytes_per_second = kInfinite, .latency_seconds = 0};
  return c;
}

std::vector<LayerChoice> alike(const LayerChoice& choice, std::int64_t layers = model().layers) {
  return std::vector<LayerChoice>(static_cast<std::size_t>(layers), choice);
}

// Every strategy with every verb at every level, some offloaded.
std::vector<LayerChoice> all_choices() {
  std::vector<LayerChoice> all;
  for (const Strategy& strategy : strategies("attention")) {
    for (const Verb verb : kVerbs) {
      for (const Recompute level : kRecomputeLevels) {
        if (strategy.one_rank && verb != Verb::gather) {
          continue;
        }
        LayerChoice choice = text_layer(strategy.name, to_string(verb), level, level);
        all.push_back(choice);
        part_of(choice, "mlp").offload = true;
        part_of(choice, "mlp").options["token_tiles"] = 2;
        if (level == Recompute::none) {
          all.push_back(choice);
        }
      }
    }
  }
  std::vector<LayerChoice> some;
  for (std::size_t i = 0; i < all.size(); i += test::kSanitized ? 3 : 1) {
    some.push_back(all[i]);
  }
  return some;
}

std::string text(const LayerChoice& choice, int ranks) {
  return name(choice) + " on " + std::to_string(ranks);
}

// Calls `check(choice, ranks, plan)` for all choices and some ranks; lengths divide nothing.
// `ways`: how messages travel.
void for_all(
    const std::vector<int>& ranks,
    const std::function<void(const LayerChoice&, const Plan&, const Cluster&)>& check,
    const std::vector<Messages>& ways = {
        {}, {.overlap = true}, {.overlap = true, .reshard_after_forward = false}}) {
  for (const int p : ranks) {
    for (const LayerChoice& choice : all_choices()) {
      Plan plan = uniform_plan(model(), {37, 101, 5}, p, alike(choice));
      for (const Messages messages : ways) {
        SCOPED_TRACE(
            text(choice, p) + (messages.overlap ? ", overlap" : "") +
            (messages.reshard_after_forward ? "" : ", weights kept"));
        plan.messages = messages;
        check(choice, plan, cluster(p));
      }
    }
  }
}

Timeline timeline_of(const Plan& plan, const PlanGroup& group, const TextShape& m) {
  return timeline(group_task(plan, group, /*keep=*/true), text_model(m));
}

// One rank, communication free: the sum of all ops' rooflines, and nothing waits.
TEST(Simulator, OneRankTakesTheSumOfItsOps) {
  const Precision precision{.activation = 2, .statistic = 4};
  for_all({1}, [&](const LayerChoice& choice, const Plan& plan, const Cluster& one) {
    if (part_of(choice, "mlp").offload) {
      return;  // copies to the host are waited for
    }
    const TextShape m = model();
    const Timeline parts = timeline_of(plan, plan.micro_batches[0].groups[0], m);
    double sum = 0;
    double peak = 0.5 * 1e12;
    for (const ScheduledPart& part : parts) {
      for (const auto* steps : part.schedule().passes()) {
        for (const ScheduledOp& step : *steps) {
          const Op& op = part.program().ops[static_cast<std::size_t>(step.op)];
          const Phase phase = step.adjoint ? Phase::adjoint : Phase::forward;
          const Work w = work({part.program(), op, {}, phase, precision});
          sum +=
              std::max(
                  w.matmul_flops / peak + w.attention_flops / (peak / 2), w.operand_bytes / 1e11) +
              w.touched_bytes / 1e11 + 1e-6 * static_cast<double>(w.launches);
        }
      }
    }
    const SimulatedRank rank = simulate(plan, m, without_communication(one)).ranks[0];
    EXPECT_NEAR(rank.seconds, sum, 1e-9 * sum);
    EXPECT_DOUBLE_EQ(rank.compute_seconds, rank.seconds);
    EXPECT_EQ(rank.exposed_seconds, 0);
    EXPECT_EQ(rank.traffic.bytes, 0);
  });
}

// Computing takes no time: MegatronTS of even sizes takes what its ten gathers and scatters a layer
// (docs/reference/strategy_costs.md) and the tiles of embedding and head take by hand, within a
// node and over two.
TEST(Simulator, ExchangesTakeTheirClosedForm) {
  TextShape even = model();
  even.kv_heads = 4;
  even.vocab = 128;
  const double T = 256;
  const double H = 64;
  const double V = 128;
  Cluster c = cluster(4);
  DeviceClass& fast = c.devices[0];
  fast.matmul_flops_per_second = fast.memory_bytes_per_second = kInfinite;
  fast.launch_seconds = 0;
  const Plan plan = uniform_plan(even, {256}, 4, alike(text_layer("MegatronTS", "hold")));
  // [copies that enter a node of what both of its ranks want]; 0: one node
  for (const int copies : {0, 1, 2}) {
    for (const double between : {1e8, 1e9, 1e12}) {
      const bool two_nodes = copies > 0;
      c.node_shares_link = false;
      c.copy_for_each_rank = copies == 2;
      c.ranks_per_node = two_nodes ? 2 : 4;
      c.between_nodes.bytes_per_second = between;
      const double latency = 2 * (two_nodes ? 5e-6 : 2e-6);  // two doublings
      // A rank gets all of `bytes` but its own quarter; half of them enter a node by two links.
      const auto gather = [&](double bytes) {
        const double inside = 0.75 * bytes / 1e10;
        return latency +
               (two_nodes ? std::max(inside, copies * bytes / 2 / (2 * between)) : inside);
      };
      double expected = 0;
      expected += 3 * 10 * gather(2 * T * H);             // layers, forward and backward
      expected += gather(2 * V * H) + gather(4 * V * H);  // embedding: rows, gradients
      expected += gather(2 * V * H) + gather(4 * V * H);  // head
      for (const SimulatedRank& rank : simulate(plan, even, c).ranks) {
        EXPECT_NEAR(rank.seconds, expected, 1e-9 * expected) << copies << " " << between;
        EXPECT_NEAR(rank.communication_seconds, expected, 1e-9 * expected);
        EXPECT_EQ(rank.compute_seconds, 0);
      }
      // a link that both ranks of a node share takes the same where it is that of both
      c.node_shares_link = true;
      c.between_nodes.bytes_per_second = 2 * between;
      EXPECT_NEAR(simulate(plan, even, c).ranks[0].seconds, expected, 1e-9 * expected);
    }
  }
}

// One rank of a node hands a ring's blocks on to the next node: alone it has all of a link that its
// node shares, with a second ring beside it half of it.  Either way it sends what it sent.
TEST(Simulator, RingsCrossLinksThatNodesShare) {
  TextShape one = model();
  one.layers = 1;
  Cluster c = cluster(4);
  c.ranks_per_node = 2;
  c.devices[0].matmul_flops_per_second = c.devices[0].memory_bytes_per_second = kInfinite;
  c.devices[0].launch_seconds = 0;
  c.inside_node.bytes_per_second = kInfinite;
  // of the exchanges of one strategy, on a link of a rank or of a node
  const auto seconds = [&](const char* strategy, bool shared, double bytes_per_second) {
    c.node_shares_link = shared;
    c.between_nodes = {.bytes_per_second = bytes_per_second, .latency_seconds = 0};
    const Plan plan = uniform_plan(one, {4096}, 4, alike(text_layer(strategy, "gather"), 1));
    double in_rings = 0;
    simulate(plan, one, c, {.training = false, .observer = {.span = [&](const Span& span) {
                                                 if (span.name == "attention ring_attention" &&
                                                     span.rank == 1 &&
                                                     span.lane == Lane::communication) {
                                                   in_rings += span.end - span.begin;
                                                 }
                                               }}});
    return in_rings;
  };
  const double block = 2.0 * 1024 * 2 * 2 * 16;  // bytes of a rank's keys and values
  EXPECT_NEAR(seconds("MegatronCZ", false, 1e6), 3 * block / 1e6, 1e-6);
  EXPECT_NEAR(seconds("MegatronCZ", true, 1e6), 3 * block / 1e6, 1e-6);
  EXPECT_NEAR(seconds("USP", false, 1e6), block / 1e6, 1e-6);  // {0, 2} and {1, 3}
  EXPECT_NEAR(seconds("USP", true, 1e6), 2 * block / 1e6, 1e-6);
}

// A ring hides what attention covers: over fast links it takes the attention, over slow ones its
// p - 1 hops, once the weights that are on their way have come.
TEST(Simulator, RingsOverlap) {
  TextShape one = model();
  one.layers = 1;
  const Plan plan = uniform_plan(one, {4096}, 4, alike(text_layer("MegatronCZ", "gather"), 1));
  Cluster c = cluster(4);
  c.ranks_per_node = 4;
  const auto ring = [&](const Cluster& where) {
    double begin = kInfinite;
    double end = 0;
    double compute = 0;
    simulate(plan, one, where, {.training = false, .observer = {.span = [&](const Span& span) {
                                                     if (span.name == "attention ring_attention" &&
                                                         span.rank == 0) {
                                                       begin = std::min(begin, span.begin);
                                                       end = std::max(end, span.end);
                                                       compute += span.lane == Lane::compute
                                                                      ? span.end - span.begin
                                                                      : 0;
                                                     }
                                                   }}});
    return std::pair(end - begin, compute);
  };
  c.inside_node = {.bytes_per_second = 1e13, .latency_seconds = 0};
  const auto [hidden, attention] = ring(c);
  EXPECT_NEAR(hidden, attention, 1e-3 * attention);
  c.inside_node.bytes_per_second = 1e6;
  const double block = 2.0 * 1024 * 2 * 2 * 16;  // bytes of a rank's keys and values
  const auto [exposed, same] = ring(c);
  const double weights = 2.0 * 0.75 * 3 * 64 * 160;  // of the MLP, on their way before
  EXPECT_NEAR(exposed, (3 * block + weights) / 1e6, 0.01 * exposed);
  EXPECT_NEAR(same, attention, 1e-9 * attention);
}

// Every rank's peak, saved and offloaded bytes are those of footprint(), its traffic and operations
// those of totals().
TEST(Simulator, CountsWhatTheFoldsCount) {
  const SimulationOptions options;
  for_all({1, 3, 4}, [&](const LayerChoice&, const Plan& plan, const Cluster& c) {
    const TextShape m = model();
    const Simulation found = simulate(plan, m, c, options);
    for (const PlanGroup& group : plan.micro_batches[0].groups) {
      const Timeline parts = timeline_of(plan, group, m);
      for (std::size_t r = 0; r < group.ranks.size(); ++r) {
        const Seat seat{.group_rank = static_cast<int>(r), .domain_rank = group.ranks[r]};
        const SimulatedRank& rank = found.ranks[static_cast<std::size_t>(group.ranks[r])];
        const std::int64_t held = stored_elements(m, plan.weight_domain, seat.domain_rank) *
                                  options.precision.of_weight(Keeps::optimizer);
        const Footprint foot = footprint(parts, seat, options.precision, held);
        EXPECT_EQ(rank.bytes.static_bytes, held);
        EXPECT_EQ(rank.peak_bytes(), foot.peak_bytes);
        EXPECT_EQ(rank.bytes.saved, foot.saved_bytes);
        EXPECT_EQ(rank.offloaded_bytes, foot.offloaded_bytes);
        const Totals sums = totals(parts, seat, options.precision);
        EXPECT_EQ(rank.traffic, sums.traffic);
        EXPECT_NEAR(
            rank.model_flops,
            sums.forward.matmul_flops + sums.backward.matmul_flops +
                3 * sums.forward.attention_flops,
            1e-6 * rank.model_flops);
      }
    }
  });
}

using Key = std::tuple<int, std::size_t, int>;  // rank, part, op

struct Seen {
  std::vector<Span> spans;
  [[nodiscard]] SimulationObserver observer() {
    return {.span = [this](const Span& span) { spans.push_back(span); }, .memory = {}};
  }
};

// The streams of a rank do one thing after the other, and no op begins before what it reads is made
// and has come.
void expect_causal(const Plan& plan, const TextShape& m, const Cluster& c) {
  Seen seen;
  const Simulation found = simulate(plan, m, c, {.observer = seen.observer()});
  std::map<std::pair<int, Lane>, double> free;
  std::map<Key, double> made;             // forward: end of all that the op does
  std::map<Key, double> forward_begins;   // first of an op's compute
  std::map<Key, double> arrived;          // end of a prefetch
  std::map<Key, double> handed_back;      // adjoints: end
  std::map<Key, double> backward_begins;  // adjoints: first of the compute
  std::map<Key, double> exchange_begins;
  for (const Span& span : seen.spans) {
    EXPECT_LE(span.begin, span.end);
    double& last = free[{span.rank, span.lane}];
    EXPECT_GE(span.begin, last - 1e-15) << span.name;
    last = span.end;
    EXPECT_LE(span.end, found.seconds * (1 + 1e-12));
    const Key key{span.rank, span.part, span.op};
    if (span.op < 0) {
      continue;
    }
    if (span.what == Span::What::prefetch) {
      arrived.emplace(key, span.end);
    } else if (span.what == Span::What::forward) {
      made[key] = std::max(made[key], span.end);
      if (span.lane == Lane::compute) {
        forward_begins.emplace(key, span.begin);
      } else {
        exchange_begins.emplace(key, span.begin);
      }
    } else if (span.what == Span::What::backward) {
      handed_back[key] = std::max(handed_back[key], span.end);
      backward_begins.emplace(key, span.begin);
    }
  }
  for (const PlanGroup& group : plan.micro_batches[0].groups) {
    const Timeline parts = timeline_of(plan, group, m);
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const Program& program = parts[part].program();
      for (std::size_t i = 0; i < program.ops.size(); ++i) {
        const Op& op = program.ops[i];
        for (const int rank : group.ranks) {
          const Key key{rank, part, static_cast<int>(i)};
          for (const ValueId in : op.in) {
            const int maker = program.values[static_cast<std::size_t>(in)].maker;
            const Key from{rank, part, maker};
            if (maker < 0) {
              continue;
            }
            if (forward_begins.contains(key)) {
              EXPECT_GE(forward_begins.at(key), made[from] - 1e-15) << to_string(op.kind);
              if (arrived.contains(from)) {
                EXPECT_GE(forward_begins.at(key), arrived.at(from) - 1e-15);
              }
            }
            if (op.kind == OpKind::redistribute && exchange_begins.contains(key) &&
                program.ranks() == 2) {  // of two ranks each reads what the other made
              for (const int other : group.ranks) {
                EXPECT_GE(exchange_begins.at(key), (made[{other, part, maker}]) - 1e-15);
              }
            }
            if (backward_begins.contains(from) && handed_back.contains(key)) {
              EXPECT_GE(backward_begins.at(from), handed_back.at(key) - 1e-15)
                  << to_string(op.kind) << " backward";
            }
          }
          if (backward_begins.contains(key) && made.contains(key)) {
            EXPECT_GE(backward_begins.at(key), made.at(key) - 1e-15);
          }
          if (part > 0 && i == 0 && forward_begins.contains(key) && !program.ops[0].in.empty()) {
            const auto last = static_cast<int>(parts[part - 1].program().ops.size()) - 1;
            EXPECT_GE(forward_begins.at(key), (made[{rank, part - 1, last}]) - 1e-15);
          }
        }
      }
    }
  }
}

TEST(Simulator, NoOpBeginsBeforeItsInputs) {
  // A step of what is begun is no op: not all of it has to be over where the next begins.
  for_all(
      {1, 2, 4},
      [](const LayerChoice&, const Plan& plan, const Cluster& c) {
        expect_causal(plan, model(), c);
      },
      {{}, {.reshard_after_forward = false}});
}

// With messages beside work the same is computed and sent, and less of it waited for.
TEST(Simulator, MessagesTravelBesideWork) {
  TextShape even = model();
  even.vocab = 128;
  even.kv_heads = 4;
  for (const char* name : {"MegatronTS", "UlyssesZ", "AllGatherKV", "METP", "DataZ"}) {
    const LayerChoice choice = text_layer(name, to_string(strategy("attention", name).verb));
    Plan plan = uniform_plan(even, {256, 256}, 2, alike(choice));
    const Simulation without = simulate(plan, even, cluster(2));
    plan.messages.overlap = true;
    const Simulation with = simulate(plan, even, cluster(2));
    double exposed[2] = {};
    for (std::size_t r = 0; r < 2; ++r) {
      EXPECT_NEAR(with.ranks[r].compute_seconds, without.ranks[r].compute_seconds, 1e-12) << name;
      EXPECT_NEAR(
          with.ranks[r].communication_seconds, without.ranks[r].communication_seconds, 1e-12)
          << name;
      EXPECT_EQ(with.ranks[r].traffic, without.ranks[r].traffic) << name;
      exposed[0] += without.ranks[r].exposed_seconds;
      exposed[1] += with.ranks[r].exposed_seconds;
    }
    EXPECT_LT(exposed[1], exposed[0]) << name;
    EXPECT_LT(with.seconds, without.seconds) << name;
  }
}

// A rank's time is what it computes, what it waits for the wire and what it waits for others; the
// iteration is as long as the busier stream of any rank, and at most all streams one after the
// other.
TEST(Simulator, LiesBetweenItsBounds) {
  for_all({1, 3, 6}, [](const LayerChoice&, const Plan& plan, const Cluster& c) {
    const Simulation found = simulate(plan, model(), c);
    const double working = found.seconds - found.gradient_seconds - found.optimizer_seconds;
    double all = 0;
    for (const SimulatedRank& rank : found.ranks) {
      EXPECT_NEAR(
          rank.seconds,
          rank.compute_seconds + rank.exposed_seconds + rank.idle_seconds,
          1e-9 * rank.seconds);
      EXPECT_LE(std::max(rank.compute_seconds, rank.communication_seconds), working * (1 + 1e-9));
      EXPECT_LE(rank.exposed_seconds, rank.communication_seconds * (1 + 1e-9));
      all += rank.compute_seconds + rank.communication_seconds;
    }
    EXPECT_LE(working, all * (1 + 1e-9));
  });
}

// Equal ranks of an even plan do not wait for one another: at most compute plus communication.
TEST(Simulator, EqualRanksDoNotIdle) {
  TextShape even = model();
  even.vocab = 128;
  even.kv_heads = 4;
  for (const char* name : {"MegatronTS", "UlyssesZ", "AllGatherKV"}) {
    const LayerChoice choice = text_layer(name, to_string(strategy("attention", name).verb));
    const Plan plan = uniform_plan(even, {64, 128}, 4, alike(choice));
    Cluster c = cluster(4);
    c.ranks_per_node = 4;
    for (const SimulatedRank& rank : simulate(plan, even, c).ranks) {
      EXPECT_NEAR(rank.idle_seconds, 0, 1e-9 * rank.seconds) << name;
      EXPECT_LE(rank.seconds, rank.compute_seconds + rank.communication_seconds + 1e-12) << name;
    }
  }
}

TEST(Simulator, IsNeverSlowerWithFasterLinksOrDevices) {
  for_all({2, 3}, [](const LayerChoice&, const Plan& plan, const Cluster& c) {
    const double before = simulate(plan, model(), c).seconds;
    Cluster links = c;
    links.inside_node.bytes_per_second *= 2;
    links.between_nodes.bytes_per_second *= 2;
    EXPECT_LE(simulate(plan, model(), links).seconds, before * (1 + 1e-12));
    Cluster devices = c;
    devices.devices[0].matmul_flops_per_second *= 2;
    devices.devices[0].memory_bytes_per_second *= 2;
    EXPECT_LE(simulate(plan, model(), devices).seconds, before * (1 + 1e-12));
    EXPECT_LE(simulate(plan, model(), without_communication(c)).seconds, before * (1 + 1e-12));
  });
}

TEST(Simulator, IsDeterministic) {
  for (const char* name : {"MegatronTS", "USP", "METP"}) {
    const LayerChoice choice = text_layer(name, to_string(strategy("attention", name).verb));
    const Plan plan = uniform_plan(model(), {37, 101}, 4, alike(choice));
    Seen first;
    Seen second;
    const double a = simulate(plan, model(), cluster(4), {.observer = first.observer()}).seconds;
    const double b = simulate(plan, model(), cluster(4), {.observer = second.observer()}).seconds;
    EXPECT_EQ(a, b);
    EXPECT_EQ(first.spans, second.spans);
  }
}

// Two unlike groups and an idle rank in one weight domain: side by side, but they meet for weights.
Plan unlike_groups() {
  const TextShape m = model();
  Plan plan = uniform_plan(m, {200, 30, 20}, 4, alike(text_layer("UlyssesZ", "gather")));
  plan.programs["alone"] =
      runs_of(alike(text_layer("DataZ", "gather", Recompute::full, Recompute::full)));
  plan.micro_batches[0].groups = {
      {.ranks = {0, 1}, .documents = {0}, .program = "all", .predicted = {}},
      {.ranks = {2}, .documents = {1, 2}, .program = "alone", .predicted = {}},
      {.ranks = {3}, .documents = {}, .program = "alone", .predicted = {}}};
  return plan;
}

TEST(Simulator, PlaysUnlikeGroupsSideBySide) {
  const Plan plan = unlike_groups();
  ASSERT_THAT(problems(plan), testing::IsEmpty());
  const Cluster c = cluster(4);
  expect_causal(plan, model(), c);
  Seen seen;
  const Simulation found = simulate(plan, model(), c, {.observer = seen.observer()});
  for (std::size_t r = 0; r < 4; ++r) {
    const SimulatedRank& rank = found.ranks[r];
    EXPECT_NEAR(
        rank.seconds,
        rank.compute_seconds + rank.exposed_seconds + rank.idle_seconds,
        1e-9 * rank.seconds);
    EXPECT_GT(rank.compute_seconds, 0);
  }
  // The idle rank joins every exchange of weights and waits for the busy ones.
  EXPECT_GT(found.ranks[3].idle_seconds, found.ranks[0].idle_seconds);
  EXPECT_GT(found.ranks[3].traffic.bytes, 0);
  // All ranks have the same exchanges over the domain, at the same time.
  const auto gathers = [&](int rank) {
    std::vector<std::pair<double, double>> all;
    for (const Span& span : seen.spans) {
      if (span.rank == rank && span.what == Span::What::prefetch) {
        all.emplace_back(span.begin, span.end);
      }
    }
    return all;
  };
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(gathers(rank), gathers(0));
  }
  // Seconds are at most those of the groups one after the other.
  Plan apart = plan;
  apart.micro_batches.push_back(plan.micro_batches[0]);
  for (PlanGroup& group : apart.micro_batches[0].groups) {
    group.documents = group.ranks[0] == 0 ? group.documents : std::vector<std::int64_t>{};
  }
  apart.micro_batches[1].groups[0] = {
      .ranks = {0}, .documents = {}, .program = "alone", .predicted = {}};
  apart.micro_batches[1].groups.push_back(
      {.ranks = {1}, .documents = {}, .program = "alone", .predicted = {}});
  EXPECT_LT(found.seconds, simulate(apart, model(), c).seconds);
}

TEST(Simulator, RefusesGroupsThatWouldWaitForEachOther) {
  Plan plan = unlike_groups();
  plan.programs["alone"] = runs_of(alike(text_layer("DataZ", "gather")));
  EXPECT_GT(simulate(plan, model(), cluster(4)).seconds, 0);
  plan.programs["alone"] = runs_of(alike(text_layer("DataZ", "hold")));
  EXPECT_THROW(simulate(plan, model(), cluster(4)), std::invalid_argument);
}

// Domains that do the same are simulated once, with the result that each has alone.
// Weights that are gathered once a step: ranks send what the folds count and what a step does, and
// a group waits for no other, whatever sharding group its ranks are of.
TEST(Simulator, PlaysGroupsThatLeaveWeightsWhole) {
  const Precision precision{.activation = 2, .statistic = 4};
  Plan plan = uniform_plan(model(), {64, 40, 90, 7}, 4, alike(text_layer("UlyssesZ", "gather")));
  const PlanGroup all = plan.micro_batches.front().groups.front();
  const auto group = [&](std::vector<int> ranks, std::vector<std::int64_t> documents) {
    PlanGroup one = all;
    one.ranks = std::move(ranks);
    one.documents = std::move(documents);
    return one;
  };
  plan.weight_domain = 2;
  plan.messages = {
      .overlap = true, .reshard_after_forward = false, .reshard_after_backward = false};
  plan.micro_batches = {
      {.groups = {group({0, 1, 2}, {0}), group({3}, {1})}, .predicted = {}},
      {.groups = {group({0}, {}), group({1, 3}, {2}), group({2}, {3})}, .predicted = {}}};
  const TextShape m = model();
  ASSERT_THAT(problems(plan, {.model = m}), testing::IsEmpty());
  const Simulation played = simulate(plan, m, cluster(4));
  for (int rank = 0; rank < 4; ++rank) {
    Traffic sent = step_traffic(m, 2, rank % 2, precision, Keeps::optimizer);
    std::int64_t peak = 0;
    const std::int64_t held =
        static_bytes(m, 2, rank % 2, precision, Keeps::optimizer, plan.messages);
    for (const PlanMicroBatch& micro : plan.micro_batches) {
      const RankPart part = rank_part(plan, micro, m, rank, true);
      sent += totals(part.timeline, part.seat, precision).traffic;
      peak = std::max(peak, footprint(part.timeline, part.seat, precision, held).peak_bytes);
    }
    const SimulatedRank& one = played.ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(one.traffic, sent) << rank;
    EXPECT_EQ(one.peak_bytes(), peak) << rank;
  }
  EXPECT_GT(step_traffic(m, 2, 0, precision, Keeps::optimizer).bytes, 0);
  EXPECT_GT(
      step_traffic(m, 2, 0, precision, Keeps::optimizer).bytes,
      step_traffic(m, 2, 0, precision, Keeps::weights).bytes);
}

TEST(Simulator, SharesResultsOfEqualDomains) {
  const LayerChoice choice = text_layer("MegatronCZ", "gather");
  const Workload workload{.lengths = {70, 33}, .domain = 4};
  Cluster many = cluster(4096);
  const Plan plan = repeated_plan(model(), many, workload, alike(choice));
  EXPECT_EQ(plan.micro_batches[0].groups.size(), 1024U);
  ASSERT_THAT(problems(plan), testing::IsEmpty());
  const Simulation found = simulate(plan, model(), many);
  const Simulation one =
      simulate(uniform_plan(model(), {70, 33}, 4, alike(choice)), model(), cluster(4));
  ASSERT_EQ(found.ranks.size(), 4096U);
  for (std::size_t r = 0; r < found.ranks.size(); ++r) {
    EXPECT_EQ(found.ranks[r].as, static_cast<int>(r % 4));
    EXPECT_DOUBLE_EQ(found.ranks[r].seconds, one.ranks[r % 4].seconds);
    EXPECT_EQ(found.ranks[r].peak_bytes(), one.ranks[r % 4].peak_bytes());
  }
  EXPECT_EQ(found.tokens, 1024 * 103);
  EXPECT_GT(found.gradient_seconds, one.gradient_seconds);
}

// Memory over time: what the trace shows at most is the peak, and in the end what is static stays.
TEST(Simulator, ShowsMemoryOverTime) {
  for_all({1, 4}, [](const LayerChoice&, const Plan& plan, const Cluster& c) {
    std::map<int, std::vector<MemorySample>> samples;
    const Simulation found = simulate(
        plan, model(), c, {.observer = {.span = {}, .memory = [&](const MemorySample& sample) {
                                          samples[sample.rank].push_back(sample);
                                        }}});
    for (std::size_t r = 0; r < found.ranks.size(); ++r) {
      const auto& mine = samples[static_cast<int>(r)];
      ASSERT_FALSE(mine.empty());
      std::int64_t most = 0;
      double at = 0;
      for (const MemorySample& sample : mine) {
        EXPECT_GE(sample.at, at - 1e-15);
        at = sample.at;
        most = std::max(most, sample.bytes);
      }
      EXPECT_EQ(most, found.ranks[r].peak_bytes());
      EXPECT_LT(mine.back().bytes, most);
      EXPECT_GE(mine.back().bytes, found.ranks[r].bytes.static_bytes);
    }
  });
}

TEST(Simulator, WritesATraceThatParses) {
  const Plan plan = uniform_plan(model(), {37, 101}, 4, alike(text_layer("USP", "gather")));
  SimulationTrace trace(2);
  simulate(plan, model(), cluster(4), {.observer = trace.observer()});
  const nlohmann::json json = nlohmann::json::parse(trace.json());
  std::set<int> ranks;
  std::set<std::string> phases;
  for (const auto& event : json.at("traceEvents")) {
    ranks.insert(event.at("pid").get<int>());
    phases.insert(event.at("ph").get<std::string>());
  }
  EXPECT_EQ(ranks, (std::set<int>{0, 1}));
  EXPECT_EQ(phases, (std::set<std::string>{"C", "M", "X"}));
  EXPECT_FALSE(trace.was_cut());
  SimulationTrace small(2, 3000);
  simulate(plan, model(), cluster(4), {.observer = small.observer()});
  EXPECT_TRUE(small.was_cut());
  EXPECT_LE(small.json().size(), 3000U);
  EXPECT_GT(nlohmann::json::parse(small.json()).at("traceEvents").size(), 10U);
}

// No documents, fewer tokens than ranks, no layers: nothing special.
TEST(Simulator, TakesTrivialBatches) {
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{0}, {1}, {2, 0, 1}}) {
    for (const LayerChoice& choice : all_choices()) {
      const Plan plan = uniform_plan(model(), lengths, 6, alike(choice));
      const Simulation found = simulate(plan, model(), cluster(6));
      EXPECT_TRUE(std::isfinite(found.seconds)) << text(choice, 6);
      EXPECT_GT(found.seconds, 0);
    }
  }
  TextShape empty = model();
  empty.layers = 0;
  const Plan plan = uniform_plan(empty, {5}, 2, {});
  EXPECT_GT(simulate(plan, empty, cluster(2)).seconds, 0);
}

TEST(Simulator, SaysWhatDoesNotFit) {
  const Plan plan = uniform_plan(model(), {4000}, 2, alike(text_layer("MegatronTS")));
  Cluster c = cluster(2);
  const Simulation fits = simulate(plan, model(), c);
  EXPECT_TRUE(fits.fits());
  c.devices[0].memory_bytes = fits.ranks[fits.fullest()].peak_bytes();
  EXPECT_TRUE(simulate(plan, model(), c).fits());
  --c.devices[0].memory_bytes;
  const Simulation found = simulate(plan, model(), c);
  EXPECT_FALSE(found.fits());
  EXPECT_EQ(found.ranks[found.fullest()].missing_bytes, 1);
}

TEST(Simulator, RefusesWhatDoesNotBelongTogether) {
  const auto refusal = [](const Plan& plan, const TextShape& m, const Cluster& c) {
    try {
      simulate(plan, m, c);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const Plan plan = uniform_plan(model(), {10}, 2, alike(text_layer("MegatronTS")));
  EXPECT_THAT(
      refusal(plan, model(), cluster(4)), testing::HasSubstr("2 ranks, the cluster test has 4"));
  TextShape other = model();
  other.hidden = 128;
  EXPECT_THAT(refusal(plan, other, cluster(2)), testing::HasSubstr("not for this one"));
  other = model();
  other.layers = 2;
  EXPECT_THAT(refusal(plan, other, cluster(2)), testing::HasSubstr("3 layers, the model 2"));
  Plan twice = plan;
  twice.micro_batches[0].groups[0].documents = {0, 0};
  EXPECT_THAT(refusal(twice, model(), cluster(2)), testing::HasSubstr("invalid"));
  const Plan nothing = uniform_plan(model(), {}, 2, alike(text_layer("DataZ", "gather")));
  EXPECT_THAT(refusal(nothing, model(), cluster(2)), testing::HasSubstr("lengths: no documents"));
  const Plan wide_domain = uniform_plan(model(), {10}, 1024, alike(text_layer("MegatronTS")));
  EXPECT_THAT(
      refusal(wide_domain, model(), cluster(1024)),
      testing::HasSubstr("sharding group (weight_domain) of 1024 ranks"));
  other = model();
  other.learned_positions = true;
  other.max_positions = 9;
  Plan longer = uniform_plan(other, {10}, 2, alike(text_layer("MegatronTS")));
  EXPECT_THAT(refusal(longer, other, cluster(2)), testing::HasSubstr("learned 9 positions"));
}

// Evaluation: forward passes alone, no update.
TEST(Simulator, PlaysEvaluation) {
  const Plan plan = uniform_plan(model(), {100}, 2, alike(text_layer("MegatronTS")));
  const Simulation training = simulate(plan, model(), cluster(2));
  const Simulation evaluation = simulate(plan, model(), cluster(2), {.training = false});
  EXPECT_LT(evaluation.seconds, training.seconds / 2);
  EXPECT_EQ(evaluation.optimizer_seconds, 0);
  EXPECT_LT(evaluation.ranks[0].peak_bytes(), training.ranks[0].peak_bytes());
}

// --- unlike devices
// -------------------------------------------------------------------------------

TEST(ProportionalShares, AreInverseToSecondsAndWithinLimits) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 500; ++trial) {
    const auto p = std::uniform_int_distribution<std::size_t>(1, 6)(random);
    std::vector<double> seconds;
    std::vector<double> limits;
    for (std::size_t r = 0; r < p; ++r) {
      seconds.push_back(std::uniform_real_distribution<double>(0.1, 3)(random));
      limits.push_back(std::uniform_real_distribution<double>(0, 1)(random));
    }
    const std::vector<double> shares = proportional_shares(seconds, limits);
    double sum = 0;
    double room = 0;
    double slowest = 0;
    for (std::size_t r = 0; r < p; ++r) {
      sum += shares[r];
      room += limits[r];
      slowest = std::max(slowest, shares[r] * seconds[r]);
    }
    SCOPED_TRACE(trial);
    EXPECT_NEAR(sum, 1, 1e-12);
    for (std::size_t r = 0; r < p && room >= 1; ++r) {
      EXPECT_LE(shares[r], limits[r] * (1 + 1e-12));
      // a rank that is done earlier is full
      EXPECT_TRUE(
          shares[r] * seconds[r] > slowest * (1 - 1e-9) || shares[r] > limits[r] * (1 - 1e-9));
    }
    for (std::size_t r = 0; r < p && room < 1; ++r) {
      EXPECT_NEAR(shares[r], limits[r] / room, 1e-12);
    }
  }
}

// A model whose time is its products and whose memory is its tokens'.
TextShape wide() {
  TextShape m;
  m.layers = 2;
  m.hidden = 512;
  m.heads = 8;
  m.kv_heads = 8;
  m.head_dim = 64;
  m.ffn = 1408;
  m.vocab = 256;
  return m;
}

Cluster two_unlike(double speed, double memory) {
  Cluster c = cluster(1);
  DeviceClass slow = c.devices[0];
  slow.name = "slow";
  slow.matmul_flops_per_second *= speed;
  slow.memory_bytes_per_second *= speed;
  slow.memory_bytes = static_cast<std::int64_t>(static_cast<double>(slow.memory_bytes) * memory);
  c.devices.push_back(slow);
  return c;
}

// Half the speed: with even cuts the slow device takes its half at half speed, as long as the fast
// one would for all; ideal cuts take 1 / (1 + 1/2) of that: they gain a third.
TEST(ProportionalTokens, GainWhatAHalfAsFastDeviceAllows) {
  const Cluster c = two_unlike(0.5, 1);
  for (const char* name : {"MegatronCZ", "AllGatherKV", "UlyssesZ"}) {
    const Plan plan = uniform_plan(wide(), {8192}, 2, alike(text_layer(name, "gather"), 2));
    const auto seconds = [&](bool proportional) {
      const Simulation found = simulate(plan, wide(), c, {.proportional_tokens = proportional});
      return found.seconds - found.gradient_seconds - found.optimizer_seconds;
    };
    const double even = seconds(false);
    const double gain = even - seconds(true);
    EXPECT_GE(gain, 0.8 * even / 3) << name;
  }
}

// Half the memory: even cuts end where the smaller device is full, ideal ones where both are.
TEST(ProportionalTokens, FitWhatAHalfAsLargeDeviceAllows) {
  TextShape deep = wide();
  deep.layers = 12;  // what is kept outweighs what a layer needs for a while
  Cluster c = two_unlike(1, 0.5);
  for (DeviceClass& each : c.devices) {
    each.memory_bytes *= 2;
  }
  const LayerChoice choice = text_layer("MegatronCZ", "gather");
  const auto fits = [&](std::int64_t length, bool proportional) {
    return simulate(
               uniform_plan(deep, {length}, 2, alike(choice, 12)),
               deep,
               c,
               {.proportional_tokens = proportional})
        .fits();
  };
  const auto longest = [&](bool proportional) {
    std::int64_t low = 0;
    std::int64_t high = std::int64_t{1} << 20;
    while (low + 64 < high) {
      const std::int64_t middle = (low + high) / 2;
      (fits(middle, proportional) ? low : high) = middle;
    }
    return static_cast<double>(low);
  };
  // Ideal: both devices full.  What a rank holds is a + b t of its tokens, from even cuts.
  const auto peak = [&](std::int64_t length) {
    const Simulation found = simulate(
        uniform_plan(deep, {length}, 2, alike(choice, 12)),
        deep,
        c,
        {.proportional_tokens = false});
    return static_cast<double>(found.ranks[0].peak_bytes());
  };
  const double b = (peak(40000) - peak(20000)) / 10000;
  const double a = peak(20000) - 10000 * b;
  const auto memory = static_cast<double>(c.devices[0].memory_bytes);
  const double ideal = (memory - a) / b + (memory / 2 - a) / b;
  const double even = longest(false);
  EXPECT_NEAR(even, 2 * (memory / 2 - a) / b, 0.02 * even);
  EXPECT_GE(longest(true) - even, 0.8 * (ideal - even));
}

// Where a device is neither slower nor smaller nothing changes.
TEST(ProportionalTokens, AreEvenOnEqualDevices) {
  const Plan plan = uniform_plan(wide(), {999}, 2, alike(text_layer("USP", "gather"), 2));
  EXPECT_EQ(
      proportional_shares(
          {0, 1}, {999}, alike(text_layer("USP", "gather"), 2), 2, wide(), cluster(2)),
      std::vector<double>{});
  EXPECT_EQ(
      simulate(plan, wide(), cluster(2)).seconds,
      simulate(plan, wide(), cluster(2), {.proportional_tokens = false}).seconds);
}

// A plan's own shares are kept, whatever the devices; those that are found become the plan's.
TEST(ProportionalTokens, StandInThePlan) {
  const Cluster c = two_unlike(0.5, 1);
  const std::vector<LayerChoice> layers = alike(text_layer("MegatronCZ", "gather"), 2);
  const Plan plan = uniform_plan(wide(), {8192}, 2, layers);
  const Plan cut = with_proportional_shares(plan, wide(), c);
  const std::vector<double> found =
      proportional_shares({0, 1}, {8192}, layers, 2, wide(), c, SimulationOptions{});
  EXPECT_EQ(cut.micro_batches[0].groups[0].shares, found);
  EXPECT_EQ(with_proportional_shares(cut, wide(), c), cut);
  const double seconds = simulate(plan, wide(), c).seconds;
  for (const bool proportional : {false, true}) {
    EXPECT_EQ(simulate(cut, wide(), c, {.proportional_tokens = proportional}).seconds, seconds);
  }
  // the wrong way round
  Plan mirrored = cut;
  mirrored.micro_batches[0].groups[0].shares = {found[1], found[0]};
  for (const bool proportional : {false, true}) {
    const Simulation slow = simulate(mirrored, wide(), c, {.proportional_tokens = proportional});
    EXPECT_GT(slow.seconds, 1.5 * seconds);
  }
  // equal devices take shares, too
  EXPECT_GT(simulate(cut, wide(), cluster(2)).seconds, simulate(plan, wide(), cluster(2)).seconds);
}

// Domains that differ in their shares alone are not the same.
TEST(ProportionalTokens, TellDomainsApart) {
  const std::vector<LayerChoice> layers = alike(text_layer("MegatronCZ", "gather"), 2);
  Plan plan = repeated_plan(wide(), cluster(6), {.lengths = {8000}, .domain = 2}, layers);
  std::vector<PlanGroup>& groups = plan.micro_batches[0].groups;
  groups[1].shares = {1e-9, 3e-9};
  groups[2].shares = {1e-9, 9e-9};
  const Simulation found = simulate(plan, wide(), cluster(6));
  for (std::size_t r = 0; r < 6; ++r) {
    EXPECT_EQ(found.ranks[r].as, static_cast<int>(r));
  }
  EXPECT_LT(found.ranks[1].compute_seconds, found.ranks[3].compute_seconds);
  EXPECT_LT(found.ranks[3].compute_seconds, found.ranks[5].compute_seconds);
  // and unlike devices of equal domains get the same shares
  Cluster c = two_unlike(0.5, 1);
  c.devices = {c.devices[0], c.devices[1], c.devices[0], c.devices[1]};
  const Plan twice = with_proportional_shares(
      repeated_plan(wide(), c, {.lengths = {8000}, .domain = 2}, layers), wide(), c);
  EXPECT_FALSE(twice.micro_batches[0].groups[0].shares.empty());
  EXPECT_THAT(problems(twice), testing::IsEmpty());
  EXPECT_EQ(
      std::llround(100 * twice.micro_batches[0].groups[0].shares[0]),
      std::llround(100 * twice.micro_batches[0].groups[1].shares[0]));
}

// Proportional cuts are never worse than even ones, whatever the strategy.
TEST(ProportionalTokens, NeverLose) {
  for (const Cluster& c : {two_unlike(0.5, 1), two_unlike(1, 0.5), two_unlike(0.3, 0.7)}) {
    for (const LayerChoice& choice : all_choices()) {
      const Plan plan = uniform_plan(model(), {300, 77}, 2, alike(choice));
      const Simulation even = simulate(plan, model(), c, {.proportional_tokens = false});
      const Simulation cut = simulate(plan, model(), c);
      EXPECT_TRUE(cut.fits() || !even.fits()) << text(choice, 2);
      if (even.fits()) {
        EXPECT_LE(cut.seconds, even.seconds * 1.0001) << text(choice, 2);
      }
    }
  }
}

// --- choices
// --------------------------------------------------------------------------------------

// The mix is at least as fast as every uniform plan that fits, and fits itself.
TEST(SimulatedChoices, TheMixIsNoSlowerThanTheBestUniformPlan) {
  TextShape deep = model();
  deep.layers = 8;
  const Workload workload{.lengths = {600}, .domain = 4};
  Cluster c = cluster(4);
  c.devices[0].memory_bytes_per_second = 1e12;
  const std::vector<SimulatedChoice> roomy = simulate_uniform(deep, c, workload);
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::int64_t most = 0;
  for (const SimulatedChoice& choice : roomy) {
    if (strategy("attention", choices(choice.plan.programs.at("all"))[0][0].strategy).one_rank) {
      continue;
    }
    const std::int64_t peak = choice.simulation.ranks[choice.simulation.fullest()].peak_bytes();
    least = std::min(least, peak);
    most = std::max(most, peak);
  }
  for (const double share : {0.02, 0.1, 0.3, 0.6, 1.0}) {
    c.devices[0].memory_bytes =
        least + static_cast<std::int64_t>(share * static_cast<double>(most - least));
    std::vector<SimulatedChoice> uniform = simulate_uniform(deep, c, workload);
    std::erase_if(uniform, [](const SimulatedChoice& choice) {
      return strategy("attention", choices(choice.plan.programs.at("all"))[0][0].strategy).one_rank;
    });
    const SimulatedChoice* fastest = best(uniform);
    ASSERT_NE(fastest, nullptr);
    const auto mix = simulate_mix(deep, c, workload);
    ASSERT_TRUE(mix.has_value()) << share;
    EXPECT_TRUE(mix->simulation.fits());
    EXPECT_LE(mix->simulation.seconds, fastest->simulation.seconds * 1.01)
        << share << " " << mix->name << " against " << fastest->name;
  }
}

TEST(SimulatedChoices, SayWhenNothingFits) {
  Cluster c = cluster(2);
  c.devices[0].memory_bytes = 1000;
  const Workload workload{.lengths = {64}, .domain = 2};
  EXPECT_EQ(best(simulate_uniform(model(), c, workload)), nullptr);
  EXPECT_FALSE(simulate_mix(model(), c, workload).has_value());
  EXPECT_THROW(
      repeated_plan(
          model(), cluster(4), {.lengths = {1}, .domain = 3}, alike(text_layer("MegatronTS"))),
      std::invalid_argument);
}

}  // namespace
}  // namespace paradyse
