// Streams played on numbers: parts that read, write and share versions of two streams, sums in
// place, and gradients handed back from reader to reader.  Judged by the same sums written down
// plainly and by finite differences; what is alive between the passes is what the fold says.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "paradyse/plan/cost.h"
#include "paradyse/plan/detail/op_traits.h"
#include "paradyse/plan/detail/schedule.h"

namespace paradyse {
namespace {

constexpr std::int64_t kElements = 6;
constexpr Precision kNumbers{.activation = 8, .statistic = 8};

using Numbers = std::vector<double>;
using Two = std::array<Numbers, 2>;  // of the streams m and z
constexpr std::array<const char*, 2> kStreams = {"m", "z"};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// A part of ops on values that are all alike.
class Parts {
 public:
  ValueId value(const std::string& name) {
    program_.values.push_back({.name = name, .layout = matrix("rows", {kElements, 1})});
    return static_cast<ValueId>(program_.values.size()) - 1;
  }
  ValueId reads(const std::string& stream) {
    program_.reads.push_back({stream, value(stream)});
    return program_.reads.back().value;
  }
  ValueId op(OpKind kind, std::vector<ValueId> in) {
    const ValueId out = value("out");
    Op op{.kind = kind, .in = std::move(in), .out = {out}, .in_place = kind == OpKind::add};
    if (kind == OpKind::cross_entropy) {
      const Layout one = matrix("rows", {1, 1});
      op.copies = {Redistribution(one, one, 1)};
    }
    op.needs = traits(kind).needs(op);
    append(program_, op);
    return out;
  }
  void writes(const std::string& stream, ValueId value) {
    program_.writes.push_back({stream, value});
  }
  ScheduledPart part(const std::string& name, Keeping keeping = {}, std::int64_t layer = -1) {
    program_.part = name;
    program_.documents = packed({kElements}, 1, true);
    Schedule order = schedule(program_, keeping);
    return {
        .layer = layer,
        .body = std::make_shared<const ScheduledPart::Body>(
            ScheduledPart::Body{std::move(program_), std::move(order)})};
  }

 private:
  Program program_;
};

// to += from^2; the same stream twice: x += x^2.
struct Coupling {
  std::size_t from;
  std::size_t to;
};

ScheduledPart coupling(Coupling c, Keeping keeping, std::int64_t layer) {
  Parts p;
  const ValueId from = p.reads(kStreams[c.from]);
  const ValueId to = c.from == c.to ? from : p.reads(kStreams[c.to]);
  p.writes(kStreams[c.to], p.op(OpKind::add, {to, p.op(OpKind::norm, {from})}));
  return p.part("couple", keeping, layer);
}

// `in_a_layer`: so many couplings in a row.
Timeline couplings(
    const std::vector<Coupling>& all, Keeping keeping = {}, std::int64_t in_a_layer = 1) {
  Timeline parts;
  Parts begin;
  for (const char* stream : kStreams) {
    begin.writes(stream, begin.op(OpKind::embed, {}));
  }
  parts.push_back(begin.part("begin"));
  for (std::size_t i = 0; i < all.size(); ++i) {
    parts.push_back(coupling(all[i], keeping, static_cast<std::int64_t>(i) / in_a_layer));
  }
  Parts end;
  for (const char* stream : kStreams) {
    end.op(OpKind::cross_entropy, {end.reads(stream)});
  }
  parts.push_back(end.part("end"));
  return linked(std::move(parts));
}

// The third machine: `norm` squares, `embed` gives the inputs and takes their gradients,
// `cross_entropy` is a weighted sum.
class Player final : public Machine {
 public:
  Player(const Timeline& timeline, const Two& inputs, const Two& weights)
      : timeline_(timeline), inputs_(inputs), weights_(weights) {}

  Two gradients = {};
  double loss = 0;
  [[nodiscard]] std::int64_t live() const { return live_; }

  void prefetch(std::size_t /*part*/, int /*op*/) override {}
  void forward(std::size_t part, int i) override {
    const Op& op = op_of(part, i);
    const auto number = at(i);  // of embed and cross_entropy: the stream's
    if (op.kind == OpKind::add) {
      const Memory sum = values_.at({part, op.in[1]});
      for (std::size_t e = 0; e < sum->size(); ++e) {
        (*sum)[e] += (*values_.at({part, op.in[0]}))[e];
      }
      values_.erase({part, op.in[1]});
      values_[{part, op.out[0]}] = sum;
      return;
    }
    const Memory out = room();
    values_[{part, op.out[0]}] = out;
    if (op.kind == OpKind::embed) {
      *out = inputs_[number];
    } else if (op.kind == OpKind::cross_entropy) {
      *out = weights_[number];
      for (std::size_t e = 0; e < out->size(); ++e) {
        loss += (*out)[e] * (*values_.at({part, op.in[0]}))[e];
      }
    } else {
      for (std::size_t e = 0; e < out->size(); ++e) {
        (*out)[e] = std::pow((*values_.at({part, op.in[0]}))[e], 2);
      }
    }
  }
  void begin_adjoint(std::size_t /*part*/, int /*op*/) override {}
  void adjoint(std::size_t part, int i) override {
    const Op& op = op_of(part, i);
    if (op.kind == OpKind::cross_entropy) {
      ASSERT_FALSE(gradients_.contains({part, op.in[0]}));
      gradients_[{part, op.in[0]}] = values_.at({part, op.out[0]});
      return;
    }
    const Memory gradient = gradients_.at({part, op.out[0]});
    if (op.kind == OpKind::embed) {
      gradients[at(i)] = *gradient;
    } else if (op.kind == OpKind::add) {
      for (const ValueId in : op.in) {
        ASSERT_FALSE(gradients_.contains({part, in})) << "who writes a stream reads it last";
        gradients_[{part, in}] = gradient;
      }
    } else {
      const Memory x = values_.at({part, op.in[0]});
      Memory& of_x = gradients_[{part, op.in[0]}];
      const bool adds = of_x != nullptr;
      if (!adds) {
        of_x = room();
      }
      for (std::size_t e = 0; e < x->size(); ++e) {
        (*of_x)[e] = (adds ? (*of_x)[e] : 0) + 2 * (*x)[e] * (*gradient)[e];
      }
    }
  }
  void drop_value(std::size_t part, ValueId value) override { values_.erase({part, value}); }
  void offload(std::size_t part, ValueId value) override {
    host_[{part, value}] = *values_.at({part, value});
    values_.erase({part, value});
  }
  void fetch(std::size_t part, ValueId value) override {
    values_[{part, value}] = room();
    *values_.at({part, value}) = host_.at({part, value});
    host_.erase({part, value});
  }
  void drop_gradients(std::size_t part, int op) override {
    for (const ValueId out : op_of(part, op).out) {
      gradients_.erase({part, out});
    }
  }
  void hand_forward(std::size_t part, std::size_t end) override {
    const ScheduledPart& maker = timeline_[part];
    for (std::size_t i = 0; i < maker.readers.size(); ++i) {
      const ValueId out = maker.program().writes[i].value;
      for (const Place& reader : maker.readers[i]) {
        if (reader.part < end) {
          values_[{reader.part, reader.value}] = values_.at({part, out});
        }
      }
    }
  }
  void hand_backward(std::size_t part) override {
    const ScheduledPart& reader = timeline_[part];
    for (std::size_t i = 0; i < reader.gradient_to.size(); ++i) {
      const Key mine{part, reader.program().reads[i].value};
      const Place to = reader.gradient_to[i];
      ASSERT_NE(to.part, kNobody);
      gradients_[{to.part, to.value}] = gradients_.at(mine);
      gradients_.erase(mine);
    }
  }

 private:
  using Key = std::pair<std::size_t, ValueId>;
  using Memory = std::shared_ptr<Numbers>;

  [[nodiscard]] const Op& op_of(std::size_t part, int op) const {
    return timeline_[part].program().ops[at(op)];
  }
  Memory room() {
    live_ += kElements;
    return {new Numbers(at(kElements)), [this](const Numbers* numbers) {
              live_ -= kElements;
              delete numbers;
            }};
  }

  const Timeline& timeline_;
  const Two& inputs_;
  const Two& weights_;
  std::int64_t live_ = 0;
  std::map<Key, Memory> values_;
  std::map<Key, Memory> gradients_;
  std::map<Key, Numbers> host_;
};

double plainly(const std::vector<Coupling>& all, Two x, const Two& weights) {
  for (const Coupling& c : all) {
    const Numbers from = x[c.from];
    for (std::size_t e = 0; e < from.size(); ++e) {
      x[c.to][e] += from[e] * from[e];
    }
  }
  double loss = 0;
  for (std::size_t s = 0; s < x.size(); ++s) {
    for (std::size_t e = 0; e < x[s].size(); ++e) {
      loss += weights[s][e] * x[s][e];
    }
  }
  return loss;
}

TEST(Streams, GradientsOfSharedVersionsAddUp) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> unit(-0.4, 0.4);
  std::uniform_int_distribution<std::size_t> stream(0, 1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<Coupling> all;
    for (int i = 0; i < 1 + trial % 9; ++i) {
      all.push_back({stream(random), stream(random)});
    }
    Two inputs;
    Two weights;
    for (std::size_t s = 0; s < 2; ++s) {
      for (std::int64_t e = 0; e < kElements; ++e) {
        inputs[s].push_back(unit(random));
        weights[s].push_back(unit(random));
      }
    }
    const Timeline parts = couplings(
        all, {.offload = trial % 3 == 0, .with_layer = trial % 2 == 0}, 1 + trial / 2 % 4);
    Player player(parts, inputs, weights);
    walk_forward(parts, player);
    const double loss = plainly(all, inputs, weights);
    ASSERT_NEAR(player.loss, loss, 1e-12 * std::max(1.0, std::abs(loss)));
    ASSERT_EQ(8 * player.live(), footprint(parts, {0, 0}, kNumbers, 0).saved_bytes);
    walk_backward(parts, player);
    ASSERT_EQ(player.live(), 0) << "nothing is held after the backward pass";
    for (std::size_t s = 0; s < 2; ++s) {
      for (std::size_t e = 0; e < at(kElements); ++e) {
        constexpr double kStep = 1e-6;
        Two moved = inputs;
        moved[s][e] += kStep;
        const double above = plainly(all, moved, weights);
        moved[s][e] -= 2 * kStep;
        const double below = plainly(all, moved, weights);
        const double slope = (above - below) / (2 * kStep);
        ASSERT_NEAR(player.gradients[s][e], slope, 1e-7 * std::max(1.0, std::abs(slope)));
      }
    }
  }
}

// What several parts read goes back through all of them, and only ops that add can be in between.
TEST(Streams, LinksReadersInTheirOrder) {
  const Timeline parts = couplings({{0, 1}, {0, 1}, {1, 0}});
  const std::vector<Place> readers_of_m = {{1, 0}, {2, 0}, {3, 1}};
  EXPECT_EQ(parts[0].readers[0], readers_of_m);
  EXPECT_EQ(parts[0].readers[1], (std::vector<Place>{{1, 1}}));
  EXPECT_EQ(parts[1].gradient_to[0], (Place{0, parts[0].program().writes[0].value}));
  EXPECT_EQ(parts[2].gradient_to[0], (Place{1, 0}));
  EXPECT_EQ(parts[3].gradient_to[1], (Place{2, 0}));
}

// Of layers that are made again as a whole what enters them is kept: each stream once a layer.
TEST(Streams, ALayerMadeAgainKeepsWhatEntersIt) {
  const std::vector<Coupling> all = {{0, 1}, {1, 0}, {1, 1}, {0, 1}, {0, 0}, {0, 0}};
  const Timeline parts = couplings(all, {.with_layer = true}, 3);
  const auto waiting = [&](std::size_t part) { return parts[part].waiting; };
  const auto reads = [&](std::size_t part, std::size_t port) {
    return parts[part].program().reads[port].value;
  };
  EXPECT_EQ(waiting(1), (std::vector<ValueId>{reads(1, 0), reads(1, 1)})) << "m and z";
  EXPECT_EQ(waiting(2), (std::vector<ValueId>{reads(2, 1)})) << "m is read once more";
  EXPECT_TRUE(waiting(3).empty()) << "z is one that the layer made";
  EXPECT_EQ(waiting(4), (std::vector<ValueId>{reads(4, 0), reads(4, 1)}));
  EXPECT_EQ(waiting(5), (std::vector<ValueId>{reads(5, 0)})) << "m, unchanged since";
  EXPECT_TRUE(waiting(6).empty());
}

TEST(Streams, ALayerMadeAgainRunsTwiceForLessMemory) {
  const std::vector<Coupling> chain(6, {0, 0});  // each keeps what it squares
  const auto saved = [](const Timeline& parts) {
    return (footprint(parts, {0, 0}, kNumbers, 0).saved_bytes -
            footprint(couplings({}), {0, 0}, kNumbers, 0).saved_bytes) /
           (kElements * kNumbers.activation);
  };
  EXPECT_EQ(saved(couplings(chain)), 6);
  EXPECT_EQ(saved(couplings(chain, {.with_layer = true}, 1)), 6);
  EXPECT_EQ(saved(couplings(chain, {.with_layer = true}, 3)), 2);
  EXPECT_EQ(saved(couplings(chain, {.offload = true, .with_layer = true}, 3)), 0);
  const auto counted = [](const Timeline& parts) { return totals(parts, {0, 0}, kNumbers); };
  const Totals once = counted(couplings(chain));
  const Totals twice = counted(couplings(chain, {.with_layer = true}, 3));
  EXPECT_EQ(once.recompute.calls, 0);
  EXPECT_EQ(twice.recompute.calls, once.forward.calls - counted(couplings({})).forward.calls);
  EXPECT_EQ(twice.forward.calls, once.forward.calls);
  EXPECT_EQ(twice.backward.calls, once.backward.calls);
}

TEST(Streams, RefusesAReaderThatCannotAdd) {
  Parts begin;
  begin.writes("m", begin.op(OpKind::embed, {}));
  Parts first;
  first.writes("z", first.op(OpKind::dropout, {first.reads("m")}));
  Parts second;
  second.writes("y", second.op(OpKind::norm, {second.reads("m")}));
  EXPECT_THROW(
      linked({begin.part("begin"), first.part("first"), second.part("second")}), std::logic_error);
}

}  // namespace
}  // namespace paradyse
