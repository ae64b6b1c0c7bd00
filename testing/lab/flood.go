package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
	"golang.org/x/sys/unix"
)

// Frames that a host of the LAN may forge, by MAC addresses from and to, maybe Broadcast.

// Broadcast is the MAC address of all hosts.
var Broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// ForgeARP returns an ARP packet (RFC 826) that has addr at sender: a gratuitous request (RFC 5227 section 3), or a
// reply.
func ForgeARP(from, to, sender net.HardwareAddr, addr netip.Addr, op arp.Operation) []byte {
	p, err := arp.NewPacket(op, sender, addr, make(net.HardwareAddr, 6), addr)
	if err != nil {
		panic(err) // addr is no IPv4 address, or a MAC has no 6 bytes
	}
	b, err := p.MarshalBinary()
	if err != nil {
		panic(err)
	}
	return append(ethernetHeader(to, from, unix.ETH_P_ARP), b...)
}

// ForgeAdvertisement returns an unsolicited neighbor advertisement (RFC 4861 section 7.2.6) to all nodes that has addr
// at target.
func ForgeAdvertisement(from, target net.HardwareAddr, addr netip.Addr) []byte {
	group := netip.MustParseAddr("ff02::1")
	b, err := ndp.MarshalMessageChecksum(&ndp.NeighborAdvertisement{Override: true, TargetAddress: addr,
		Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: target}}}, addr, group)
	if err != nil {
		panic(err)
	}
	return append(forgeIPv6(from, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, addr, group, len(b)), b...)
}

func forgeIPv6(from, to net.HardwareAddr, src, dst netip.Addr, length int) []byte {
	f := append(ethernetHeader(to, from, unix.ETH_P_IPV6), 0x60, 0, 0, 0)
	f = append(binary.BigEndian.AppendUint16(f, uint16(length)), unix.IPPROTO_ICMPV6, ndp.HopLimit)
	return append(append(f, src.AsSlice()...), dst.AsSlice()...)
}

// ForgeUDP returns an IPv4 packet with a UDP payload and no checksum (RFC 768).
func ForgeUDP(from, to net.HardwareAddr, src, dst netip.AddrPort, payload []byte) []byte {
	f := ethernetHeader(to, from, unix.ETH_P_IP)
	ip := append([]byte{0x45, 0}, binary.BigEndian.AppendUint16(nil, uint16(28+len(payload)))...)
	ip = append(ip, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0)
	ip = append(append(ip, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
	f = binary.BigEndian.AppendUint16(append(f, ip...), src.Port())
	f = binary.BigEndian.AppendUint16(f, dst.Port())
	f = binary.BigEndian.AppendUint16(f, uint16(8+len(payload)))
	return append(append(f, 0, 0), payload...)
}

// A Flood sends frames from a host's eth0 for as long as it runs.
type Flood struct {
	stop context.CancelFunc
	done sync.WaitGroup
	sent atomic.Int64
	err  error // read it after done
}

// Flood has a host send frame(0), frame(1), and so on, perSecond, or, with 0, as fast as one goroutine can, until Stop
// or ctx. Frames may share memory.
func (l *Lab) Flood(ctx context.Context, host string, perSecond int, frame func(i int) []byte) (*Flood, error) {
	c, err := listenPackets(host, 0) // of no EtherType: it receives nothing
	if err != nil {
		return nil, fmt.Errorf("flood from %s: %w", host, err)
	}
	f := &Flood{}
	ctx, f.stop = context.WithCancel(ctx)
	f.done.Go(func() {
		defer c.Close()
		began := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			if perSecond > 0 {
				time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(perSecond))))
			}
			switch _, err := c.Write(frame(i)); {
			case err == nil:
				f.sent.Add(1)
			case !errors.Is(err, unix.ENOBUFS): // the link's queue is full
				f.err = fmt.Errorf("flood from %s: %w", host, err)
				return
			}
		}
	})
	return f, nil
}

// Stop ends the flood, and returns how many frames were sent. It may be called again.
func (f *Flood) Stop() (sent int64, err error) {
	f.stop()
	f.done.Wait()
	return f.sent.Load(), f.err
}
