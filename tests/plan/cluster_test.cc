// Cluster files: what they say is what is read, and what is wrong is named.
#include "paradyse/plan/cluster.h"

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/plan/simulate/machine_cluster.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using testing::HasSubstr;

const std::string kDevice = R"([[device]]
name = "fast"
count = 2
matmul_flops_per_second = 1e12
float32_flops_per_second = 5e11
matmul_fraction = 0.5
attention_fraction = 0.25
memory_bytes_per_second = 1e11
memory_bytes = 16e9
launch_seconds = 0
host_bytes_per_second = 1e10
)";
const std::string kTop = "name = \"two\"\nranks_per_node = 2\n";
const std::string kInside = "[inside_node]\nbytes_per_second = 1e10\nlatency_seconds = 1e-6\n";
const std::string kWhole = kTop + kDevice + kInside;

std::string refusal(const std::string& text) {
  try {
    cluster_from_toml(text, "c.toml");
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted:\n" << text;
  return "";
}

std::string with(const std::string& from, const std::string& to) {
  std::string text = kWhole;
  text.replace(text.find(from), from.size(), to);
  return text;
}

TEST(ClusterFile, SaysWhatIsRead) {
  const Cluster cluster = cluster_from_toml(
      with("[[device]]", "[[device]]") + "[between_nodes]\nbytes_per_second = 1e9\n" +
          "latency_seconds = 2e-6\n",
      "c.toml");
  EXPECT_EQ(cluster.name, "two");
  EXPECT_EQ(cluster.ranks(), 2);
  EXPECT_EQ(cluster.device(1).memory_bytes, 16'000'000'000);
  EXPECT_EQ(cluster.link(0, 1).bytes_per_second, 1e10);
  EXPECT_EQ(cluster.between_nodes.bytes_per_second, 1e9);
  EXPECT_TRUE(cluster.uniform());
}

// Ranks are numbered through the classes, nodes are runs of neighbours.
TEST(ClusterFile, NumbersRanksThroughItsDevices) {
  std::string slow = kDevice;
  slow.replace(slow.find("fast"), 4, "slow");
  slow.replace(slow.find("1e12"), 4, "5e11");
  const Cluster cluster = cluster_from_toml(
      kTop + kDevice + slow + kInside + "[between_nodes]\nbytes_per_second = 1e9\n" +
          "latency_seconds = 2e-6\n",
      "c.toml");
  EXPECT_EQ(cluster.ranks(), 4);
  EXPECT_EQ(cluster.device(1).name, "fast");
  EXPECT_EQ(cluster.device(2).name, "slow");
  EXPECT_THROW((void)cluster.device(4), std::logic_error);
  EXPECT_EQ(cluster.link(1, 2), cluster.between_nodes);
  EXPECT_EQ(cluster.link(2, 3), cluster.inside_node);
  EXPECT_FALSE(cluster.uniform());
}

// Every message has the file, the key, what stands there and what is accepted.
TEST(ClusterFile, NamesWhatIsWrong) {
  EXPECT_THAT(refusal("name = "), HasSubstr("c.toml:1: is not TOML"));
  EXPECT_THAT(refusal(""), HasSubstr("name: is missing"));
  EXPECT_THAT(refusal(kTop + kInside), HasSubstr("device: at least one section [[device]]"));
  EXPECT_THAT(refusal(kTop + kDevice), HasSubstr("inside_node: a section"));
  EXPECT_THAT(
      refusal(with("matmul_fraction = 0.5", "matmul_fractions = 0.5")),
      testing::AllOf(
          HasSubstr("device[0].matmul_fractions"), HasSubstr("did you mean 'matmul_fraction'?")));
  EXPECT_THAT(
      refusal(with("memory_bytes = 16e9\n", "")), HasSubstr("device[0].memory_bytes: is missing"));
  EXPECT_THAT(
      refusal(
          with("[inside_node]\nbytes_per_second = 1e10", "[inside_node]\nbytes_per_second = 0")),
      testing::AllOf(
          HasSubstr("inside_node.bytes_per_second"),
          HasSubstr("expected a number from 1 to 1e+18"),
          HasSubstr("found 0")));
  for (const char* bad : {"-1", "inf", "nan", "\"much\"", "[1]", "true"}) {
    EXPECT_THAT(
        refusal(with(
            "matmul_flops_per_second = 1e12", std::string("matmul_flops_per_second = ") + bad)),
        HasSubstr("device[0].matmul_flops_per_second: expected a number from 1 to 1e+18"))
        << bad;
  }
  for (const char* bad : {"0", "1.5", "-3", "1e12", "\"2\""}) {
    EXPECT_THAT(
        refusal(with("count = 2", std::string("count = ") + bad)),
        HasSubstr("device[0].count: expected a whole number from 1 to 1048576"))
        << bad;
  }
  EXPECT_THAT(
      refusal(with("attention_fraction = 0.25", "attention_fraction = 1.25")),
      HasSubstr("expected a number from 0.0001 to 1"));
  EXPECT_THAT(
      refusal(with("ranks_per_node = 2", "ranks_per_node = 1")), HasSubstr("between_nodes"));
  EXPECT_THAT(refusal(kWhole + "[network]\n"), HasSubstr("network: is not known"));
  EXPECT_THAT(refusal(kTop + "device = 3\n" + kInside), HasSubstr("device: at least one section"));
  EXPECT_THAT(
      [&] {
        try {
          read_cluster("/nowhere.toml");
        } catch (const std::invalid_argument& error) {
          return std::string(error.what());
        }
        return std::string();
      }(),
      HasSubstr("/nowhere.toml: is not there; give a cluster file"));
}

// Numbers that no machine has: each key is named, with what it accepts.
TEST(ClusterFile, RefusesImpossibleNumbers) {
  const std::string whole = kTop + kDevice + kInside +
                            "[between_nodes]\nbytes_per_second = 1e9\nlatency_seconds = 2e-6\n";
  const std::vector<std::string> never = {
      "-1",
      "-0.5",
      "nan",
      "-nan",
      "inf",
      "-inf",
      "1e308",
      "1e300",
      "\"fast\"",
      "true",
      "[]",
      "{}",
      "1979-05-27"};
  struct Case {
    std::string key;   // as in messages
    std::string line;  // of the file
    std::vector<std::string> bad;
  };
  const std::vector<Case> cases = {
      {"ranks_per_node", "ranks_per_node = 2", {"0", "1.5", "1048577", "1e18"}},
      {"device[0].count", "count = 2", {"0", "0.5", "1048577", "9223372036854775807"}},
      {"device[0].matmul_flops_per_second",
       "matmul_flops_per_second = 1e12",
       {"0", "1e-300", "1e19"}},
      {"device[0].float32_flops_per_second",
       "float32_flops_per_second = 5e11",
       {"0", "0.9", "1e19"}},
      {"device[0].matmul_fraction", "matmul_fraction = 0.5", {"0", "1e-9", "1.0001", "50"}},
      {"device[0].attention_fraction", "attention_fraction = 0.25", {"0", "1e-320", "2"}},
      {"device[0].memory_bytes_per_second",
       "memory_bytes_per_second = 1e11",
       {"0", "1e-5", "1e19"}},
      {"device[0].memory_bytes", "memory_bytes = 16e9", {"0", "0.5", "1.5", "2e18"}},
      {"device[0].launch_seconds", "launch_seconds = 0", {"61", "1e9"}},
      {"device[0].host_bytes_per_second", "host_bytes_per_second = 1e10", {"0", "1e19"}},
      {"inside_node.bytes_per_second", "bytes_per_second = 1e10\nlat", {"0", "1e-300", "1e19"}},
      {"inside_node.latency_seconds", "latency_seconds = 1e-6", {"61", "1e300"}},
      {"between_nodes.bytes_per_second", "bytes_per_second = 1e9\nlat", {"0", "1e-300", "1e19"}},
      {"between_nodes.latency_seconds", "latency_seconds = 2e-6", {"61", "1e300"}}};
  EXPECT_EQ(cluster_from_toml(whole, "c.toml").ranks(), 2);
  for (const Case& one : cases) {
    const std::size_t at = whole.find(one.line);
    ASSERT_NE(at, std::string::npos) << one.line;
    const std::size_t value = whole.find("= ", at) + 2;
    const std::size_t end = whole.find('\n', value);
    std::vector<std::string> bad = never;
    bad.insert(bad.end(), one.bad.begin(), one.bad.end());
    for (const std::string& number : bad) {
      std::string text = whole;
      text.replace(value, end - value, number);
      EXPECT_THAT(
          refusal(text),
          testing::AllOf(HasSubstr("c.toml: " + one.key + ": expected a "), HasSubstr("found ")))
          << number;
    }
  }
  // integers beyond 64 bits are no TOML
  EXPECT_THAT(refusal(with("count = 2", "count = 9223372036854775808")), HasSubstr("is not TOML"));
  EXPECT_THAT(refusal(with("count = 2", "count = 2\ncount = 2")), HasSubstr("is not TOML"));
}

TEST(ClusterFile, RefusesUnequalNodesAndTooManyRanks) {
  const std::string between = "[between_nodes]\nbytes_per_second = 1e9\nlatency_seconds = 2e-6\n";
  EXPECT_THAT(
      refusal(with("count = 2", "count = 5") + between),
      HasSubstr("c.toml: ranks_per_node: 2 does not divide the 5 ranks"));
  EXPECT_EQ(
      cluster_from_toml(with("count = 2", "count = 1"), "c.toml").ranks(), 1);  // part of a node
  const std::string many = with("count = 2", "count = 1048576");
  EXPECT_EQ(cluster_from_toml(many + between, "c.toml").ranks(), 1 << 20);
  std::string twice = many;
  twice.insert(twice.find("[inside_node]"), kDevice);
  EXPECT_THAT(refusal(twice + between), HasSubstr("add up to more than 1048576 ranks"));
}

TEST(ClusterFile, OfOneNodeSaysNothingOfLinksBetweenNodes) {
  const Cluster one = cluster_from_toml(kWhole, "c.toml");
  EXPECT_EQ(cluster_from_toml(to_toml(one), "c.toml"), one);
  EXPECT_EQ(with_ranks(one, 1, "c.toml").ranks(), 1);
  EXPECT_THAT(
      test::refusal([&] { with_ranks(one, 2 * one.ranks_per_node, "c.toml"); }),
      HasSubstr("c.toml has one node of 2 ranks and says nothing of links between nodes"));
}

TEST(ClusterFile, SaysWhoseTheBandwidthIs) {
  const auto between = [](const std::string& whose) {
    return kWhole + "[between_nodes]\nbytes_per_second = 1e9\nlatency_seconds = 2e-6\n" + whose;
  };
  EXPECT_FALSE(cluster_from_toml(between(""), "c.toml").node_shares_link);
  EXPECT_FALSE(cluster_from_toml(between("bandwidth_of = \"rank\"\n"), "c.toml").node_shares_link);
  EXPECT_TRUE(cluster_from_toml(between("bandwidth_of = \"node\"\n"), "c.toml").node_shares_link);
  EXPECT_THAT(
      refusal(between("bandwidth_of = \"all\"\n")),
      HasSubstr("between_nodes.bandwidth_of: expected \"node\" or \"rank\", found \"all\""));
}

TEST(ClusterFile, SaysHowManyCopiesEnterANode) {
  const auto between = [](const std::string& copies) {
    return kWhole + "[between_nodes]\nbytes_per_second = 1e9\nlatency_seconds = 2e-6\n" + copies;
  };
  EXPECT_FALSE(cluster_from_toml(between(""), "c.toml").copy_for_each_rank);
  EXPECT_FALSE(cluster_from_toml(between("copies = \"node\"\n"), "c.toml").copy_for_each_rank);
  EXPECT_TRUE(cluster_from_toml(between("copies = \"rank\"\n"), "c.toml").copy_for_each_rank);
  EXPECT_THAT(
      refusal(between("copies = \"two\"\n")),
      HasSubstr("between_nodes.copies: expected \"node\" or \"rank\", found \"two\""));
  EXPECT_THAT(
      refusal(kTop + kDevice + kInside + "copies = \"rank\"\n"), HasSubstr("copies: is not known"));
}

// What is written is read as the same, to the last bit.
TEST(ClusterFile, WritesWhatItReads) {
  Cluster cluster = cluster_from_toml(kWhole, "c.toml");
  EXPECT_EQ(cluster_from_toml(to_toml(cluster, "measured"), "again"), cluster);
  cluster.name = "a \"name\"\n\\ of \u00e9";
  cluster.devices.push_back(cluster.devices[0]);
  cluster.devices[1].matmul_flops_per_second = 1e12 / 3;
  cluster.devices[1].launch_seconds = 1.0 / 3e5;
  cluster.devices[1].memory_bytes = 16'000'000'001;
  cluster.between_nodes = {.bytes_per_second = 1e9 / 7, .latency_seconds = 0.1};
  const std::string text = to_toml(cluster, "of two kinds");
  EXPECT_EQ(text.substr(0, 15), "# of two kinds\n");
  EXPECT_EQ(cluster_from_toml(text, "again"), cluster);
  cluster.copy_for_each_rank = true;
  cluster.node_shares_link = true;
  EXPECT_EQ(cluster_from_toml(to_toml(cluster), "again"), cluster);
  cluster.devices[0].count = 0;
  EXPECT_THROW(to_toml(cluster), std::invalid_argument);
}

// Four ranks on two cores have half of one each; a meeting of four takes two latencies.
TEST(MachineCluster, GivesRanksTheirPartOfACore) {
  const MachineNumbers machine{
      .matmul_flops_per_second = 4e10,
      .attention_flops_per_second = 1e10,
      .touched_bytes_per_second = 8e9,
      .sent_bytes_per_second = 2e9,
      .collective_seconds = 6e-6,
      .call_seconds = 2e-6,
      .cores = 2};
  const Cluster four = machine_cluster(machine, "here", 4, 1000);
  EXPECT_EQ(four.ranks(), 4);
  EXPECT_EQ(four.node(3), 0);
  const DeviceClass& rank = four.device(3);
  EXPECT_EQ(rank.float32_flops_per_second * rank.matmul_fraction, 2e10);
  EXPECT_EQ(rank.float32_flops_per_second * rank.attention_fraction, 5e9);
  EXPECT_EQ(rank.memory_bytes_per_second, 4e9);
  EXPECT_EQ(rank.launch_seconds, 4e-6);
  EXPECT_EQ(rank.memory_bytes, 250);
  EXPECT_EQ(four.inside_node.bytes_per_second, 1e9);
  EXPECT_EQ(four.inside_node.latency_seconds, 6e-6);
  EXPECT_EQ(cluster_from_toml(to_toml(four), "again"), four);
  // Two have a core each; attention may be what is faster.
  MachineNumbers other = machine;
  other.attention_flops_per_second = 8e10;
  const Cluster two = machine_cluster(other, "here", 2, 1000);
  EXPECT_EQ(two.device(0).float32_flops_per_second, 8e10);
  EXPECT_EQ(two.device(0).attention_fraction, 1);
  EXPECT_EQ(two.device(0).matmul_fraction, 0.5);
  EXPECT_EQ(two.inside_node.latency_seconds, 6e-6);
  EXPECT_EQ(machine_cluster(machine, "here", 1, 1000).inside_node.latency_seconds, 6e-6);
}

TEST(ClusterFile, ThoseOfTheRepositoryAreRead) {
  const std::filesystem::path folder =
      std::filesystem::path(PARADYSE_SOURCE_DIR) / "configs/clusters";
  const auto ranks = [&](const char* name) { return read_cluster(folder / name).ranks(); };
  EXPECT_EQ(ranks("8xA100-80GB.toml"), 8);
  EXPECT_EQ(ranks("64xA100-40GB.toml"), 64);
  EXPECT_EQ(ranks("64xH100.toml"), 64);
  EXPECT_EQ(ranks("4096xH100.toml"), 4096);
}

}  // namespace
}  // namespace paradyse
