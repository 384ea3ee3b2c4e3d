#include "src/run/kernels/aten/aten_kernels.h"
#include "src/run/kernels/aten/loss.h"
#include "src/run/kernels/cpu/kernels.h"
#include "src/run/kernels/cpu/plain_loops.h"
#include "src/run/kernels/cpu/products.h"
#include "src/run/kernels/cpu/regions.h"
#include "src/run/kernels/cpu/tile_attention.h"

namespace paradyse {

const Kernels& cpu_kernels() {
  static const Kernels table = {
      .name = "cpu",
      .rms_norm = kernels::rms_norm,
      .rms_norm_adjoint = kernels::rms_norm_adjoint,
      .layer_norm = kernels::layer_norm,
      .layer_norm_adjoint = kernels::layer_norm_adjoint,
      .add_to_rows = kernels::add_to_rows,
      .add_sum_of_rows = kernels::add_sum_of_rows,
      .add_sum_of_products = kernels::add_sum_of_products,
      .add_numbers = kernels::add_numbers,
      .dropout = kernels::dropout,
      .rotations = kernels::rotations,
      .rotate = kernels::rotate,
      .swiglu = kernels::swiglu,
      .swiglu_adjoint = kernels::swiglu_adjoint,
      .product = ops::product,
      .scaled_product = ops::gemm,
      .attend = ops::attend_blocks,
      .attend_adjoint = ops::attend_blocks_adjoint,
      .drop_probabilities = kernels::drop_probabilities,
      .softmax = kernels::softmax,
      .score_gradient = kernels::score_gradient,
      .look_up = kernels::look_up,
      .add_looked_up = kernels::add_looked_up,
      .loss_statistics = aten::loss_statistics,
      .loss_gradient = aten::loss_gradient,
      .loss_and_gradient = aten::loss_and_gradient,
      .squared_error = kernels::squared_error,
      .adamw = aten::adamw,
      .copy_region = kernels::copy_region,
      .sum_regions = kernels::sum_regions};
  return table;
}

}  // namespace paradyse
