// paradyse bench comm: seconds and bytes a second of the collectives.
#include "src/run/measure/bench_comm.h"

#include <cstdio>

#include <fmt/format.h>

#include "paradyse/run/accountant.h"
#include "src/cli/backend_options.h"
#include "src/cli/inputs.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/rank_limits.h"
#include "src/run/device/device.h"

namespace paradyse::cli {
namespace {

struct BenchCommOptions {
  int ranks = 0;
  std::vector<std::int64_t> bytes = {64, 4096, 65536, 1048576, 4194304};
  double seconds = 0.2;
  BackendOptions backend;
};

int bench_comm_on(
    const std::shared_ptr<Backend>& backend,
    const BenchCommOptions& options,
    const Common& common) {
  const int ranks = ranks_of(options.backend, options.ranks, 4);
  const auto rows = bench_comm(
      {.ranks = ranks,
       .bytes = options.bytes,
       .seconds = options.seconds,
       .backend = backend,
       .device = device_named(options.backend.device)});
  if (!backend->leads()) {
    return kOk;
  }
  if (common.json) {
    Json json = Json::array();
    for (const BenchCommRow& row : rows) {
      json.push_back(
          {{"collective", row.collective},
           {"bytes", row.bytes},
           {"seconds", row.seconds},
           {"bytes_per_s", row.bytes_per_s},
           {"memcpy_seconds", row.memcpy_seconds}});
    }
    print_json({{"backend", backend->name()}, {"ranks", ranks}, {"rows", json}});
    return kOk;
  }
  fmt::print(
      "{}, {} ranks; a message goes from one rank to another; memcpy: copying as many bytes as a "
      "rank receives\n",
      backend->name(),
      ranks);
  std::vector<std::vector<std::string>> table = {
      {"collective", "message", "microseconds", "GB/s received", "memcpy microseconds"}};
  for (const BenchCommRow& row : rows) {
    table.push_back(
        {row.collective,
         bytes_text(row.bytes),
         fmt::format("{:.1f}", row.seconds * 1e6),
         fmt::format("{:.3f}", row.bytes_per_s / 1e9),
         fmt::format("{:.1f}", row.memcpy_seconds * 1e6)});
  }
  std::fputs(common.table(table, {}).c_str(), stdout);
  return kOk;
}

int run_bench_comm(const BenchCommOptions& options, const Common& common) {
  expect_ranks(ranks_of(options.backend, options.ranks, 4));
  return on_backend(
      options.backend, given_by(common), [&](const std::shared_ptr<Backend>& backend) {
        return bench_comm_on(backend, options, common);
      });
}

}  // namespace

void add_bench_comm(CLI::App& bench, Common& common) {
  auto [command, options] = add_command<BenchCommOptions>(
      bench,
      common,
      "comm",
      "Measure time and bandwidth of the collectives by message size",
      run_bench_comm);
  command
      ->add_option(
          "--ranks",
          options->ranks,
          "Number of ranks (default: 4; over gloo the number of processes)")
      ->transform(whole_numbers(1, kMostRanks));
  command->add_option("--bytes", options->bytes, "Message sizes in bytes, as in 4096,4194304")
      ->delimiter(',')
      ->transform(whole_numbers(1, std::int64_t{1} << 30))
      ->capture_default_str();
  command
      ->add_option("--seconds", options->seconds, "Approximate time for each collective and size")
      ->check(seconds())
      ->capture_default_str();
  add_backend_options(*command, options->backend);
  add_device_option(*command, options->backend);
}

}  // namespace paradyse::cli
