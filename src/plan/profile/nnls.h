// Least squares with coefficients that are not negative.
#pragma once

#include <Eigen/Core>

namespace paradyse {

// The x >= 0 with the least |A x - b|, by the active-set method of Lawson and Hanson, "Solving
// Least Squares Problems", 1974, chapter 23.  Where several x are as good, one of them. Columns of
// very different sizes are fine: they are scaled inside.
Eigen::VectorXd nonnegative_least_squares(const Eigen::MatrixXd& A, const Eigen::VectorXd& b);

}  // namespace paradyse
