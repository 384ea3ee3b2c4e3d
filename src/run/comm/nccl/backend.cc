// The `nccl` backend: gloo's processes, each with a GPU of its own.
#include "src/run/comm/gloo/backend.h"

#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include "src/run/comm/nccl/communicator.h"
#include "src/run/comm/nccl/interface.h"
#include "src/run/device/device.h"

namespace paradyse {
namespace {

// What the launcher says, else the rank among as many as there are GPUs.
int gpu_of(const GlooOptions& options) {
  const int gpus = cuda_devices();
  if (gpus == 0) {
    device_named("cuda");  // throws: it says what to do
  }
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
    const char* const text = std::getenv(name);
    if (text == nullptr) {
      continue;
    }
    const std::string_view digits = text;
    int rank = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (error != std::errc{} || end != digits.data() + digits.size() || rank < 0) {
      throw std::invalid_argument(fmt::format(
          "environment: {} is '{}'; accepted is a rank on this machine, from 0", name, digits));
    }
    if (rank >= gpus && gpus > 1) {  // a launcher may show each process its own GPU alone
      throw std::invalid_argument(fmt::format(
          "--backend nccl: {} is {}, this process sees {} GPUs; nccl takes one for each rank: "
          "start "
          "as many processes a machine as it has GPUs, or take --backend local, whose ranks share "
          "one",
          name,
          rank,
          gpus));
    }
    return rank % gpus;
  }
  return options.rank % gpus;
}

class NcclLayer final : public gloo::Layer {
 public:
  NcclLayer(gloo::Store& store, gloo::Watch& watch, const GlooOptions& options)
      : watch_(watch), wire_(nccl::connect(store, watch, options.rank, options.size)) {}

  std::unique_ptr<gloo::RankCommunicators> over(
      std::unique_ptr<gloo::RankCommunicators> gloo, int /*ranks*/) override {
    return nccl::communicators(*wire_, watch_, std::move(gloo));
  }

 private:
  gloo::Watch& watch_;
  std::unique_ptr<nccl::Wire> wire_;
};

}  // namespace

std::shared_ptr<Backend> nccl_backend(const GlooOptions& options) {
  constexpr const char* kInterface = "NCCL_SOCKET_IFNAME";
  if (const auto name = nccl::socket_interface(options.interface, std::getenv(kInterface))) {
    ::setenv(kInterface, name->c_str(), 1);  // no other thread of ours is there yet
  }
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(gpu_of(options)));
  return gloo::layered_backend(options, "nccl", [options](gloo::Store& store, gloo::Watch& watch) {
    return std::make_unique<NcclLayer>(store, watch, options);
  });
}

}  // namespace paradyse
