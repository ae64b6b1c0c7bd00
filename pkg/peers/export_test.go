package peers

// KernelWire is how packets travel unless Options say otherwise.
func KernelWire() Wire { return kernelWire{} }
