// Cluster files: what they say is what is read, and what is wrong is named.
#include "paradyse/plan/cluster.h"

#include <filesystem>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  EXPECT_THAT(refusal("name = "), HasSubstr("c.toml:1: is no TOML"));
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
          HasSubstr("expected a number above 0"),
          HasSubstr("found 0")));
  for (const char* bad : {"-1", "inf", "nan", "\"much\"", "[1]", "true"}) {
    EXPECT_THAT(
        refusal(with(
            "matmul_flops_per_second = 1e12", std::string("matmul_flops_per_second = ") + bad)),
        HasSubstr("device[0].matmul_flops_per_second: expected a number above 0"))
        << bad;
  }
  for (const char* bad : {"0", "1.5", "-3", "1e12", "\"2\""}) {
    EXPECT_THAT(
        refusal(with("count = 2", std::string("count = ") + bad)),
        HasSubstr("device[0].count: expected a whole number above 0"))
        << bad;
  }
  EXPECT_THAT(
      refusal(with("attention_fraction = 0.25", "attention_fraction = 1.25")),
      HasSubstr("expected a number above 0 to 1"));
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
      HasSubstr("/nowhere.toml: cannot be read"));
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
