#include "src/run/kernels/cpu/kernels.h"
#include "src/run/kernels/cpu/products.h"
#include "src/run/kernels/cpu/regions.h"
#include "src/run/kernels/cpu/tile_attention.h"

namespace paradyse {

// Cross-entropy and AdamW are ATen's.
const Kernels& cpu_kernels() {
  static const Kernels table = [] {
    Kernels all = aten_kernels();
    all.name = "cpu";
    kernels::add_loops(all);
    kernels::add_plain_loops(all);
    all.product = ops::product;
    all.scaled_product = ops::gemm;
    all.attend = ops::attend_blocks;
    all.attend_adjoint = ops::attend_blocks_adjoint;
    all.copy_region = kernels::copy_region;
    all.sum_regions = kernels::sum_regions;
    return all;
  }();
  return table;
}

}  // namespace paradyse
