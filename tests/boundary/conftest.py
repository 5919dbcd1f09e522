from cuda.conftest import device as device
