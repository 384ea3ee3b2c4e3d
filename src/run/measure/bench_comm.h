// How fast a backend's collectives are: what `paradyse bench comm` measures.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/run/backend.h"

namespace paradyse {

struct BenchCommRequest {
  int ranks = 1;
  int group = 0;  // the first so many of them take part, the others wait; 0: all
  std::vector<std::int64_t> bytes = {};  // a rank's message to each other one
  double seconds = 0.2;                  // for each collective and size, about
  std::shared_ptr<Backend> backend = local_backend();
  c10::Device device = c10::Device(c10::kCPU);
};

struct BenchCommRow {
  std::string collective;
  std::int64_t bytes = 0;  // of a message
  double seconds = 0;      // median of a call, on rank 0
  double least_seconds = 0;
  double most_seconds = 0;
  double bytes_per_s = 0;     // that one rank receives
  double memcpy_seconds = 0;  // of as many bytes as a rank receives, by a thread (or GPU) alone
};

// all_gather, reduce_scatter, all_to_all, all_reduce, shift, broadcast and barrier, in float32.
// The process that leads (backend.h) gets the rows.
std::vector<BenchCommRow> bench_comm(const BenchCommRequest& request);

}  // namespace paradyse
