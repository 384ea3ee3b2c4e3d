// What rounding alone does to each gradient: what `check` and the tests hold it to in narrow types.
#pragma once

#include <functional>
#include <map>
#include <string>

#include <ATen/ATen.h>

#include "paradyse/plan/dtype.h"
#include "src/run/reference/reference.h"

namespace paradyse {

// Of a narrow type: half a unit of the last place.
double rounding(Dtype dtype);

// [gradient] Its condition: its error, in the measure of gradients.h, where each weight is
// rounded once more, in float64, the mean over some draws.  Terms that cancel one another leave it
// large, sums of one sign small.  `gradients_of`: the reference's.  A gradient that is judged as
// another has the larger of both.
std::map<std::string, double> own_rounding(
    const reference::Weights& weights,
    const std::function<std::map<std::string, at::Tensor>(const reference::Weights& weights)>&
        gradients_of,
    Dtype dtype,
    const std::map<std::string, std::string>& judged_as = {});

// How far a gradient of such a condition may be off, in the same measure: a few times that, since
// every op rounds what it makes, too.  `behind_scores`: it reaches the loss through scores of
// attention alone, without what would turn keys by their places.
double narrow_limit(double own, Dtype dtype, bool behind_scores = false);
// The same of any condition: the largest.
double widest_narrow_limit(Dtype dtype);

}  // namespace paradyse
