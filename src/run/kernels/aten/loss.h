// Cross-entropy of tiles of logits (kernels.h) as ATen's operations, on every device: what is
// beside the logits are a few numbers a token.
#pragma once

#include "src/run/kernels/kernels.h"

namespace paradyse::aten {

void loss_statistics(const kernels::LogitsTile& tile, const kernels::LossStatistics& statistics);
void loss_gradient(
    const kernels::LogitsTile& tile,
    const kernels::LossStatistics& statistics,
    double scale,
    const at::Tensor& gradient);
void loss_and_gradient(
    const kernels::LogitsTile& tile,
    const kernels::LossStatistics& statistics,
    double scale,
    const at::Tensor& gradient);

}  // namespace paradyse::aten
