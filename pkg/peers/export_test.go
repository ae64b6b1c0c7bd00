package peers

// KernelTransport is the Transport unless Options have another.
func KernelTransport() Transport { return kernelTransport{} }

// Detectable reports whether the death of another node would be detected.
func (p *Peers) Detectable(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.detector.peers[node]
	return o != nil && o.detectable()
}

// Why is why another node is in its state, in words for a person; "" if there is nothing to say.
func (p *Peers) Why(node string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.detector.peers[node]; o != nil {
		return o.why
	}
	return ""
}
