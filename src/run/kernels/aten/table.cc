#include "src/run/kernels/aten/aten_attention.h"
#include "src/run/kernels/aten/aten_kernels.h"
#include "src/run/kernels/aten/loss.h"

namespace paradyse {

const Kernels& aten_kernels() {
  static const Kernels table = {
      .name = "aten",
      .rms_norm = aten::rms_norm,
      .rms_norm_adjoint = aten::rms_norm_adjoint,
      .layer_norm = aten::layer_norm,
      .layer_norm_adjoint = aten::layer_norm_adjoint,
      .add_to_rows = aten::add_to_rows,
      .add_sum_of_rows = aten::add_sum_of_rows,
      .add_sum_of_products = aten::add_sum_of_products,
      .add_numbers = aten::add_numbers,
      .dropout = aten::dropout,
      .rotations = aten::rotations,
      .rotate = aten::rotate,
      .swiglu = aten::swiglu,
      .swiglu_adjoint = aten::swiglu_adjoint,
      .product = aten::product,
      .scaled_product = aten::scaled_product,
      .attend = aten::attend_blocks,
      .attend_adjoint = aten::attend_blocks_adjoint,
      .drop_probabilities = aten::drop_probabilities,
      .softmax = aten::softmax,
      .score_gradient = aten::score_gradient,
      .look_up = aten::look_up,
      .add_looked_up = aten::add_looked_up,
      .loss_statistics = aten::loss_statistics,
      .loss_gradient = aten::loss_gradient,
      .loss_and_gradient = aten::loss_and_gradient,
      .squared_error = aten::squared_error,
      .adamw = aten::adamw,
      .copy_region = aten::copy_region,
      .sum_regions = aten::sum_regions};
  return table;
}

}  // namespace paradyse
