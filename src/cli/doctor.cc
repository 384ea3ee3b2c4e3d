// paradyse doctor: what this machine is, and whether everything works on it.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "src/cli/commands.h"
#include "src/cli/progress.h"
#include "src/cli/version.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/disk_file.h"
#include "src/run/device/data_sheet.h"
#include "src/run/device/device.h"
#include "src/run/device/host_memory.h"
#include "src/run/measure/machine.h"
#include "src/run/measure/trials.h"

namespace paradyse::cli {
namespace {

struct DoctorOptions {
  std::string device = "cpu";
  std::string dtype = "bfloat16";  // of what is tried on another one
};

// One thing looked at.
struct Finding {
  std::string name;
  Json value;          // for --json
  std::string text;    // for people
  std::string remedy;  // not empty: something is broken
};

Finding cores() {
  const int usable = usable_cores();
  return {
      "cores", usable, fmt::format("{} usable (ranks are threads that share them)", usable), ""};
}

Finding memory() {
  const auto [total, free, limit] = host_memory();
  const std::string note =
      limit > 0 ? ", limited to " + bytes_text(limit) + " by the container" : "";
  constexpr std::int64_t kNeeded = std::int64_t{1} << 30;
  return {
      "memory",
      {{"total_bytes", total}, {"available_bytes", free}},
      bytes_text(free) + " available of " + bytes_text(total) + note,
      free < kNeeded ? "less than 1 GiB is available: end other programs, or train with smaller "
                       "batches (train.tokens_per_step) or fewer ranks"
                     : ""};
}

Finding disk() {
  const auto space = std::filesystem::space(".");
  const auto free = static_cast<std::int64_t>(space.available);
  constexpr std::int64_t kNeeded = std::int64_t{1} << 30;
  return {
      "disk",
      {{"available_bytes", free}},
      bytes_text(free) + " free in this folder",
      free < kNeeded ? "less than 1 GiB is free: checkpoints may not fit; set output.folder to "
                       "another disk"
                     : ""};
}

Finding torch_version() {
  return {
      "libtorch",
      TORCH_VERSION,
      TORCH_VERSION,
      std::string(TORCH_VERSION).starts_with("2.11.")
          ? ""
          : "this program is tested with 2.11: run scripts/install.sh and build again"};
}

Finding cuda() {
  const int gpus = cuda_devices();
  const std::string old = gpus == 0 ? driver_too_old(cuda_of_driver()) : "";
  return {
      "cuda",
      {{"built", cuda_is_built()}, {"gpus", gpus}},
      !cuda_is_built() ? "not in this build (make build-cuda)"
      : gpus == 0      ? "built in, no GPU is seen" + (old.empty() ? "" : "; " + old)
                       : fmt::format("built in, {} GPU{} seen", gpus, gpus == 1 ? "" : "s"),
      ""};
}

Finding vector_instructions() {
  const std::string level = at::get_cpu_capability();
  return {
      "vector instructions",
      level,
      level,
      level == "DEFAULT" ? "neither AVX2 nor AVX-512 is used, which makes everything several times "
                           "slower: take another machine, or unset ATEN_CPU_CAPABILITY"
                         : ""};
}

Finding matmul() {
  const ProductTrial trial = try_product();
  return {
      "matmul",
      {{"float32_flops_per_second", trial.flops_per_second}, {"correct", trial.right}},
      fmt::format("{:.1f} GFLOP/s (float32, one thread)", trial.flops_per_second / 1e9),
      trial.right ? "" : "matrix products are wrong: libtorch is damaged; run scripts/install.sh"};
}

Finding local_communicator() {
  const ExchangeTrial trial = try_exchange();
  return {
      "communicator",
      {{"backend", "local"},
       {"latency_seconds", trial.barrier_seconds},
       {"bytes_per_second", trial.bytes_per_second}},
      fmt::format(
          "local: {:.1f} us a barrier, {:.1f} GB/s a rank (2 ranks)",
          trial.barrier_seconds * 1e6,
          trial.bytes_per_second / 1e9),
      trial.failure.empty()
          ? ""
          : "two ranks could not communicate: " + trial.failure +
                "; run it again when the machine has less load; if it fails again, report it"};
}

// "; 71 % of the data sheet's 989.4"
std::string beside_sheet(double reached, double of_sheet, double unit) {
  return fmt::format(
      "; {:.0f} % of the data sheet's {:.1f}", 100 * reached / of_sheet, of_sheet / unit);
}

// The device that --device names, tried in the type that it is there for.
Finding device(const DoctorOptions& options) {
  const Dtype dtype = dtype_option(options.dtype);
  c10::Device on(c10::kCPU);
  try {
    on = device_named(options.device);
  } catch (const std::invalid_argument& error) {
    return {"device", nullptr, "not there", error.what()};
  }
  const DeviceTrial trial = try_device(typical_model(), dtype, on);
  const std::optional<DataSheet> sheet = data_sheet_of(trial.card);
  Json value = {
      {"card", trial.card},
      {"dtype", options.dtype},
      {"correct", trial.right},
      {"large_product_flops_per_second", trial.large_product_flops_per_second},
      {"product_flops_per_second", trial.product_flops_per_second},
      {"attention_flops_per_second", trial.attention_flops_per_second},
      {"copied_bytes_per_second", trial.copied_bytes_per_second},
      {"kernel_seconds", trial.kernel_seconds},
      {"data_sheet", nullptr}};
  std::string of_products;
  std::string of_copies;
  if (sheet) {
    value["data_sheet"] = {
        {"name", sheet->name},
        {"flops_per_second", sheet->narrow_flops},
        {"bytes_per_second", sheet->memory_bytes_per_second}};
    if (narrow(dtype)) {
      of_products = beside_sheet(trial.large_product_flops_per_second, sheet->narrow_flops, 1e12);
    }
    of_copies = beside_sheet(trial.copied_bytes_per_second, sheet->memory_bytes_per_second, 1e12);
  }
  return {
      "device",
      value,
      fmt::format(
          "{}, {}: {:.1f} TFLOP/s in a large product{}; {:.1f} in products and {:.1f} in attention "
          "of a layer; copies {:.2f} TB/s{}; {:.1f} us a small kernel",
          trial.card.empty() ? options.device : trial.card,
          options.dtype,
          trial.large_product_flops_per_second / 1e12,
          of_products,
          trial.product_flops_per_second / 1e12,
          trial.attention_flops_per_second / 1e12,
          trial.copied_bytes_per_second / 1e12,
          of_copies,
          trial.kernel_seconds * 1e6),
      trial.right ? ""
                  : "matrix products on the device are wrong: check that the driver fits this CUDA "
                    "version, and that nvidia-smi reports no errors"};
}

// One cell: a table leaves columns behind the second out where lines are short.
std::string row_head(const std::string& verdict, const std::string& name) {
  return fmt::format("{:<6}  {}", verdict, name);
}

int run_doctor(const DoctorOptions& options, const Common& common) {
  dtype_option(options.dtype);  // throws for an unknown one
  if (options.device != "cpu" && options.device != "cuda") {
    device_named(options.device);  // throws
  }
  std::vector<std::pair<const char*, std::function<Finding()>>> looks = {
      {"cores", cores},
      {"memory", memory},
      {"disk", disk},
      {"libtorch", torch_version},
      {"cuda", cuda},
      {"vector instructions", vector_instructions},
      {"matmul", matmul},
      {"communicator", local_communicator}};
  if (options.device != "cpu") {
    looks.emplace_back("device", [&] { return device(options); });
  }
  bool broken = false;
  Json json = {{"ok", true}, {"version", version()}, {"findings", Json::array()}};
  std::vector<std::vector<std::string>> rows = {{row_head("ok", "paradyse"), version()}};
  std::string remedies;
  for (const auto& [name, look] : looks) {
    Finding finding;
    try {
      const Waiting waiting(name, common.json);
      finding = look();
    } catch (const std::exception& error) {  // the rest is looked at all the same
      finding = {name, nullptr, "failed", message_of(error)};
    }
    const bool fine = finding.remedy.empty();
    broken |= !fine;
    Json one = {{"name", finding.name}, {"ok", fine}, {"value", finding.value}};
    if (!fine) {
      one["remedy"] = finding.remedy;
      remedies += "\n" + finding.name + ": " + finding.remedy;
    }
    json["findings"].push_back(std::move(one));
    rows.push_back({row_head(fine ? "ok" : "BROKEN", finding.name), finding.text});
  }
  json["ok"] = !broken;
  if (common.json) {
    print_json(json);
  } else {
    fmt::print("{}", common.table(rows, {.left = 2}));
    fmt::print("{}{}", remedies, remedies.empty() ? "" : "\n");
    fmt::print(
        "{}\n", verdict(broken ? "something is broken: see above" : "nothing is broken", !broken));
  }
  return broken ? kFailed : kOk;
}

}  // namespace

void add_doctor(CLI::App& app, Common& common) {
  auto [command, options] = add_command<DoctorOptions>(
      app,
      common,
      "doctor",
      "Check this machine and print what is wrong and how to fix it",
      run_doctor);
  command
      ->add_option(
          "--device",
          options->device,
          "cuda: also measure a GPU and compare it with its data sheet: a large matrix product, "
          "copies, and a LLaMA layer (hidden 2048, 16 query and 8 key/value heads, FFN 5632) on "
          "4096 tokens")
      ->option_text("NAME");
  command->add_option("--dtype", options->dtype, "Data type for the GPU measurement")
      ->capture_default_str();
}

}  // namespace paradyse::cli
