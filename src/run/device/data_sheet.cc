#include "src/run/device/data_sheet.h"

#include <algorithm>
#include <array>

namespace paradyse {
namespace {

struct Row {
  std::string_view card;
  const char* sheet;
  double tflops;  // dense: half of what sheets say with sparsity
  double terabytes;
};

// Driver's names; numbers of the sheets named, read in 2025.
constexpr std::array kRows = {
    Row{"NVIDIA A100-SXM4-40GB", "NVIDIA A100 Tensor Core GPU, SXM 40 GB", 312, 1.555},
    Row{"NVIDIA A100-SXM4-80GB", "NVIDIA A100 Tensor Core GPU, SXM 80 GB", 312, 2.039},
    Row{"NVIDIA A100-PCIE-40GB", "NVIDIA A100 Tensor Core GPU, PCIe 40 GB", 312, 1.555},
    Row{"NVIDIA A100 80GB PCIe", "NVIDIA A100 Tensor Core GPU, PCIe 80 GB", 312, 1.935},
    Row{"NVIDIA H100 80GB HBM3", "NVIDIA H100 Tensor Core GPU, SXM", 989.4, 3.35},
    Row{"NVIDIA H100 PCIe", "NVIDIA H100 Tensor Core GPU, PCIe", 756, 2.0},
    Row{"NVIDIA H100 NVL", "NVIDIA H100 Tensor Core GPU, NVL", 835, 3.9},
    Row{"NVIDIA H200", "NVIDIA H200 Tensor Core GPU, SXM", 989.4, 4.8},
    Row{"NVIDIA H200 NVL", "NVIDIA H200 Tensor Core GPU, NVL", 835.5, 4.8},
    Row{"NVIDIA B200", "NVIDIA DGX B200", 2250, 8.0},
    Row{"NVIDIA L40S", "NVIDIA L40S GPU", 362.05, 0.864},
    Row{"NVIDIA L40", "NVIDIA L40 GPU", 181.05, 0.864},
    Row{"NVIDIA L4", "NVIDIA L4 Tensor Core GPU", 121, 0.3},
    Row{"NVIDIA A40", "NVIDIA A40 GPU", 149.7, 0.696},
    Row{"NVIDIA A10", "NVIDIA A10 Tensor Core GPU", 125, 0.6}};

}  // namespace

std::optional<DataSheet> data_sheet_of(std::string_view card) {
  const auto* const row = std::ranges::find(kRows, card, &Row::card);
  if (row == kRows.end()) {
    return std::nullopt;
  }
  return DataSheet{
      .name = row->sheet,
      .narrow_flops = row->tflops * 1e12,
      .memory_bytes_per_second = row->terabytes * 1e12};
}

}  // namespace paradyse
