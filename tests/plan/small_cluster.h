// A small cluster with two kinds of links, for tests of what is played on one.
#pragma once

#include <cstdint>

#include "paradyse/plan/cluster.h"

namespace paradyse {

inline Cluster small_cluster(int ranks, int ranks_per_node = 2) {
  return {
      .name = "test",
      .ranks_per_node = ranks_per_node,
      .devices =
          {{.name = "d",
            .count = ranks,
            .matmul_flops_per_second = 1e12,
            .float32_flops_per_second = 5e11,
            .matmul_fraction = 0.5,
            .attention_fraction = 0.25,
            .memory_bytes_per_second = 1e11,
            .memory_bytes = std::int64_t{1} << 30,
            .launch_seconds = 1e-6,
            .host_bytes_per_second = 1e10}},
      .inside_node = {.bytes_per_second = 1e10, .latency_seconds = 2e-6},
      .between_nodes = {.bytes_per_second = 1e9, .latency_seconds = 5e-6}};
}

}  // namespace paradyse
