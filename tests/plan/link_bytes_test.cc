// Bytes by link: by hand over two nodes, and in sum what the folds count.
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/simulate.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/simulate/choices.h"
#include "tests/plan/random_groups.h"
#include "tests/plan/small_cluster.h"
#include "tests/support/plans.h"

namespace paradyse {
namespace {

using testing::ElementsAre;

TextShape model() {
  TextShape m;
  m.layers = 3;
  m.hidden = 64;
  m.heads = 8;
  m.kv_heads = 4;
  m.head_dim = 8;
  m.ffn = 160;
  m.vocab = 128;
  return m;
}

// Of four ranks on two nodes a rank sends each other a part: one stays in its node, two leave.
constexpr std::int64_t T = 256;
constexpr std::int64_t H = 64;
constexpr std::int64_t KV = 32;                                             // width of all keys
constexpr std::int64_t kElements = (H + 2 * KV) * H + H * H + 3 * H * 160;  // of a layer

// What a rank sends one other of weights in a step: forward and again backward its quarter, then
// the sum of that quarter's gradient; of the vocabulary twice two bytes, and gradients of four.
std::int64_t weights_to_one() {
  return 3 * (kElements / 4) * (2 + 2 + 2) + 2 * (128 / 4) * H * (2 + 4);
}

LinkBytes played(const std::string& attention) {
  const Plan plan = test::uniform_plan(model(), {T}, 4, text_layer(attention, "gather"));
  const Cluster c = small_cluster(4, 2);
  const Simulation found = simulate(plan, model(), c);
  EXPECT_EQ(link_bytes(simulate(plan, model(), c, {.additive = true}), c), link_bytes(found, c));
  const LinkBytes links = link_bytes(found, c);
  EXPECT_EQ(links.inside_nodes + links.between_nodes, found.bytes_sent());
  return links;
}

// Each rank hands everything to the next: ranks 0 and 2 inside their node, 1 and 3 out of it.
TEST(LinkBytes, OfARingOverTwoNodes) {
  const LinkBytes links = played("MegatronCZ");
  const std::int64_t block = T / 4 * 2 * KV;
  // three hops forward, three back, and three of the sums in four bytes
  const std::int64_t ring = 3 * block * (3 * 2 + 3 * 2 + 3 * 4);
  EXPECT_EQ(links.inside_nodes, 2 * ring + 4 * weights_to_one());
  EXPECT_EQ(links.between_nodes, 2 * ring + 4 * 2 * weights_to_one());
  const std::int64_t inside = ring + 2 * weights_to_one();
  const std::int64_t across = ring + 2 * 2 * weights_to_one();
  EXPECT_THAT(links.by_node, ElementsAre(ElementsAre(inside, across), ElementsAre(across, inside)));
}

// Each rank gives each other a quarter of its rows' columns: of three such parts two leave the
// node.
TEST(LinkBytes, OfAnAllToAllOverTwoNodes) {
  const LinkBytes links = played("UlyssesZ");
  // q, k and v there and o back, forward and backward, in two bytes
  const std::int64_t to_one = 3 * (T / 4) * ((H + 2 * KV) / 4 + H / 4) * 2 * 2;
  EXPECT_EQ(links.inside_nodes, 4 * (to_one + weights_to_one()));
  EXPECT_EQ(links.between_nodes, 4 * 2 * (to_one + weights_to_one()));
  const std::int64_t inside = 2 * (to_one + weights_to_one());
  EXPECT_THAT(
      links.by_node, ElementsAre(ElementsAre(inside, 2 * inside), ElementsAre(2 * inside, inside)));
}

// On one node nothing is between nodes.
TEST(LinkBytes, OfOneNodeStayInside) {
  const Plan plan = test::uniform_plan(model(), {T}, 4, text_layer("UlyssesZ", "gather"));
  const Simulation found = simulate(plan, model(), small_cluster(4, 4));
  const LinkBytes links = link_bytes(found, small_cluster(4, 4));
  EXPECT_EQ(links.between_nodes, 0);
  EXPECT_EQ(links.inside_nodes, found.bytes_sent());
  EXPECT_THAT(links.by_node, ElementsAre(ElementsAre(found.bytes_sent())));
}

// Of plans of all kinds: rank by rank they add up to the traffic, which is the folds'.
TEST(LinkBytes, AddUpToTheTraffic) {
  const TextShape m = random_groups_model();
  for (unsigned seed = 100; seed < 160; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Plan plan =
        random_groups(random, m, {.ranks = 6, .domains = 1 + static_cast<int>(seed % 3)});
    const Cluster c = small_cluster(plan.ranks, 1 + static_cast<int>(seed % 4));
    const Simulation found = simulate(plan, m, c);
    for (const SimulatedRank& rank : found.ranks) {
      std::int64_t sum = 0;
      for (const auto& [node, bytes] : rank.bytes_to_node) {
        EXPECT_GE(node, 0);
        sum += bytes;
      }
      EXPECT_EQ(sum, rank.traffic.bytes);
    }
    const LinkBytes links = link_bytes(found, c);
    EXPECT_EQ(links.inside_nodes + links.between_nodes, found.bytes_sent());
    std::int64_t all = 0;
    for (const auto& row : links.by_node) {
      for (const std::int64_t bytes : row) {
        all += bytes;
      }
    }
    EXPECT_EQ(all, found.bytes_sent());
  }
}

// Domains that share a result send inside their own nodes.
TEST(LinkBytes, OfEqualDomainsStayWithThem) {
  const Cluster c = small_cluster(12, 2);
  const Plan plan = repeated_plan(
      model(),
      c,
      {.lengths = {T}, .domain = 4},
      std::vector<LayerChoice>(3, text_layer("UlyssesZ", "gather")));
  const LinkBytes links = link_bytes(simulate(plan, model(), c), c);
  const LinkBytes one = played("UlyssesZ");
  ASSERT_EQ(links.by_node.size(), 6U);
  for (std::size_t from = 0; from < 6; ++from) {
    for (std::size_t to = 0; to < 6; ++to) {
      EXPECT_EQ(links.by_node[from][to], from / 2 == to / 2 ? one.by_node[from % 2][to % 2] : 0);
    }
  }
}

}  // namespace
}  // namespace paradyse
